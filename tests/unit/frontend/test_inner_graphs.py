"""What a branch of a condition computes, as a text that decides which sites share a plugin."""

import pytest
import torch

from ytk_client.frontend.inner_graphs import graph_text

pytestmark = pytest.mark.torch


def branch(held, name="held", target=torch.ops.aten.mul.Tensor):
    root = torch.nn.Module()
    setattr(root, name, held)
    graph = torch.fx.Graph()
    x, other = graph.placeholder("x"), graph.get_attr(name)
    graph.output((graph.call_function(target, (x, other)),))
    return torch.fx.GraphModule(root, graph)


def test_a_tensor_counts_by_what_it_holds_and_not_by_its_name():
    one = torch.tensor([2.0, 3.0])
    assert graph_text(branch(one)) == graph_text(branch(one.clone(), "another"))
    others = [torch.tensor([5.0, 7.0]), torch.tensor([[2.0], [3.0]]), one.view(torch.int32), one.double()]
    assert len({graph_text(branch(each)) for each in [one, *others]}) == 5
    assert graph_text(branch(one)) != graph_text(branch(one, target=torch.ops.aten.add.Tensor))
    assert graph_text(branch(torch.tensor(3, dtype=torch.bfloat16))) != graph_text(branch(torch.tensor(3.5)))


def test_a_branch_within_a_branch_counts_by_what_it_computes():
    inner, changed = branch(torch.ones(2)), branch(torch.zeros(2))
    assert graph_text(branch(inner)) == graph_text(branch(branch(torch.ones(2)), "another"))
    assert graph_text(branch(inner)) != graph_text(branch(changed))
