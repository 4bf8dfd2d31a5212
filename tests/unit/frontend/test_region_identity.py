"""A region is the same region for who exports it and for who generates kernels for it."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from ytk_client.frontend.standalone import export_region, write_exported
from ytk_core.formats.region import operation_lines
from ytk_gaia.generator.region_input import derive_spec


class Pair(NamedTuple):
    left: Any
    right: Any


SOURCE = """
import torch
from torch.nn import functional as F

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 8, 3, bias=False)

    def forward(self, x, other):
        y = F.pad(self.conv(x), [1, 1, 1, 1], mode="constant", value=0.5)
        parts = torch.cat([y[:, 1:3], y[:, ::2]], dim=1)
        values, _ = torch.topk(parts, 2, dim=-1)
        return values.clamp(min=-1.5) * other, parts.mean((2, 3), keepdim=True)

def get_fwd_args():
    return torch.randn(1, 4, 8, 8), torch.randn(1, 1, 1, 2)
"""


@pytest.mark.torch
def test_both_sides_give_one_digest(tmp_path):
    (tmp_path / "region.py").write_text(SOURCE)
    exported = export_region(tmp_path / "region.py")
    write_exported(tmp_path / "Model.pt2", exported)
    read = derive_spec(torch.export.load(tmp_path / "Model.pt2"), "Model")
    assert read.digest == exported.spec.digest
    assert read.aten_ops == exported.spec.aten_ops


@pytest.mark.torch
def test_lines_are_those_that_torch_would_print_with_numbers_for_nodes(tmp_path):
    (tmp_path / "region.py").write_text(SOURCE)
    nodes = export_region(tmp_path / "region.py").program.graph.nodes
    numbers = {node.name: f"%{count}" for count, node in enumerate(nodes)}
    wanted = [
        f"{numbers[node.name]} = {node.target}"
        f"{torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda each: numbers[each.name])}"
        for node in nodes
        if node.op in {"call_function", "output"}
    ]
    assert operation_lines(nodes) == wanted


def test_names_do_not_show_and_values_do():
    class Node(SimpleNamespace):
        pass

    def lines(prefix, value):
        x = Node(name=f"{prefix}x", op="placeholder", target="x", args=(), kwargs={})
        y = Node(
            name=f"{prefix}y", op="call_function", target="f", args=(x, [x, 2]), kwargs={"at": slice(x, None, value)}
        )
        z = Node(name=f"{prefix}z", op="output", target="output", args=(Pair(y, {"k": (y,)}),), kwargs={})
        return operation_lines([x, y, z])

    assert lines("a", 1) == lines("b", 1) != lines("a", 2)
    assert lines("a", 1) == [
        "%1 = f(('%0', ['%0', 2]), {'at': slice('%0', None, 1)})",
        "%2 = output((Pair(left='%1', right={'k': ('%1',)}),), {})",
    ]
