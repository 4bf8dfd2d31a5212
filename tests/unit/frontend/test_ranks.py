"""Permutes of more axes than a target takes."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ytk_client.frontend.ranks import split_permute


@given(st.permutations(range(9)), st.lists(st.integers(1, 3), min_size=9, max_size=9), st.sampled_from([4, 6, 8]))
@settings(max_examples=200, deadline=None)
def test_the_steps_move_every_element_to_its_place(order, dims, max_rank):
    given_array = np.arange(np.prod(dims)).reshape(dims)
    value = given_array
    for step in split_permute(dims, order, max_rank):
        assert len(step.dims) <= max_rank
        value = value.reshape(step.dims).transpose(step.order)
    assert (value.ravel() == given_array.transpose(order).ravel()).all()


def test_a_patchify_of_eight_axes_is_two_permutes_of_six():
    # b, c, (t, pt), (h, ph), (w, pw) with every axis going somewhere of its own.
    steps = split_permute([2, 3, 4, 2, 8, 2, 8, 2], [0, 2, 4, 6, 3, 5, 7, 1], 6)
    assert [len(step.dims) <= 6 for step in steps] == [True, True]


def test_axes_that_stay_neighbours_or_have_one_place_cost_nothing():
    (step,) = split_permute([1, 3, 2, 2, 2, 2, 1, 2, 2], [0, 2, 3, 1, 6, 4, 5, 8, 7], 5)
    assert step.dims == (3, 4, 4, 2, 2)
    assert split_permute([2, 3, 4], [0, 1, 2], 8) == []


PATCHES = """
class Model(nn.Module):
    def forward(self, x):
        y = x.reshape(1, 2, 3, 2, 4, 2, 4, 2, 2)
        return y.{move}

def get_fwd_args():
    return (torch.randn(1, 2, 6, 8, 16),)
"""


@pytest.mark.torch
def test_cutting_into_patches_needs_no_plugin(run_prepare):
    moved = PATCHES.format(move="permute(0, 8, 2, 4, 6, 1, 3, 5, 7).reshape(1, 96, -1) * 2")
    report, out = run_prepare(moved)
    assert report.rows == ()
    assert all(verdict.ok for verdict in report.accuracy)
    graph = onnx.shape_inference.infer_shapes(onnx.load(out / "model.onnx", load_external_data=False)).graph
    assert max(len(info.type.tensor_type.shape.dim) for info in graph.value_info) <= 8
    assert {node.op_type for node in graph.node} == {"Reshape", "Transpose", "Mul"}


@pytest.mark.torch
def test_what_computes_at_the_high_rank_is_still_carved(run_prepare):
    added = PATCHES.format(move="permute(0, 8, 2, 4, 6, 1, 3, 5, 7).exp().reshape(1, 96, -1)")
    report, _ = run_prepare(added)
    assert [row.sites for row in report.rows] == [1]
