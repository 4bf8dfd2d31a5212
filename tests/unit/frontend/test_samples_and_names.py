"""Reference inputs and output names."""

import pytest

from ytk_client.frontend.naming import output_names

pytestmark = pytest.mark.torch


def test_variations_keep_shape_dtype_and_range():
    import torch

    from ytk_client.frontend.samples import reference_inputs

    grid = torch.rand(4, 5) * 2 - 1
    index = torch.tensor([2, 5, 3])
    mask = torch.tensor([True, False, True, True])
    attention = torch.tensor([0.0, float("-inf"), 0.5])
    half = torch.randn(8).half()
    scalar = torch.tensor(3.0)
    empty = torch.zeros(0, 3)
    args = [grid, index, mask, attention, half, scalar, empty]
    first, *others = reference_inputs(args, count=4, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, args, strict=True))
    for sample in others:
        assert [(t.shape, t.dtype) for t in sample] == [(t.shape, t.dtype) for t in args]
        assert sample[0].min() >= grid.min()
        assert sample[0].max() <= grid.max()
        assert not torch.equal(sample[0], grid)
        assert sample[1].min() >= 2
        assert sample[1].max() <= 5
        assert sample[3][1] == float("-inf")
        assert abs(sample[5] - 3.0) < 3.0
    assert not torch.equal(others[0][0], others[1][0])
    again = reference_inputs(args, count=4, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(again[2], others[1], strict=True))
    different = reference_inputs(args, count=2, seed=2)
    assert not torch.equal(different[1][0], others[0][0])


def test_a_list_of_places_keeps_its_rows():
    import torch

    from ytk_client.frontend.samples import reference_inputs

    places = torch.tensor([(0, z, y, x) for z in range(2) for y in range(3) for x in range(4)] + [(-1,) * 4] * 3)
    numbers = torch.tensor([(0, 1), (5, 2)] * 6)  # rows that repeat are no places
    tokens = torch.arange(40).reshape(4, 10)  # four long rows: a batch of words
    _, sample = reference_inputs([places, numbers, tokens], count=2, seed=3)
    assert not torch.equal(sample[0], places)
    assert sorted(sample[0].tolist()) == sorted(places.tolist())
    assert sorted(sample[1].tolist()) != sorted(numbers.tolist())
    assert sorted(sample[2].tolist()) != sorted(tokens.tolist())


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([()], ["output"]),
        ([(0,), (1,)], ["output_0", "output_1"]),
        ([("scores",), ("boxes",)], ["scores", "boxes"]),
        ([("a", 0), ("a", 1, "b")], ["a_0", "a_1_b"]),
        ([(0, "x")], ["output_0_x"]),
        ([("image",)], ["image_out"]),
        ([("a b",), ("a/b",), ("a.b",)], ["a_b", "a_b_out", "a_b_out2"]),
        ([("",)], ["output"]),
    ],
)
def test_output_names(paths, names):
    assert output_names(paths, ["image"]) == names
