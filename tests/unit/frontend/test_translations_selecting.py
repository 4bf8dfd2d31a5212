"""What is as long as the data says, and constants in the type that they are for: native, for old TensorRT too."""

import math

import numpy as np
import pytest
import torch

from ytk_client.frontend import translations_exact
from ytk_core.targets import load_profile

from conformance.examine import Call, examine
from conformance.outcome import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

NAN, INF = math.nan, math.inf
ODD = torch.tensor([2.0, NAN, -1.0, INF, 2.0, NAN, -INF, INF, -1.0, 0.5])
RUNS = torch.tensor([[1, 1, 2], [2, 2, 1]])
MASK = torch.tensor([[True, False, True], [False, False, True]])


def everything(function):
    return lambda x: function(x, return_inverse=True, return_counts=True)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (everything(torch.unique), [ODD]),
        (everything(torch.unique), [RUNS]),
        (everything(torch.unique), [RUNS > 1]),
        (everything(torch.unique), [torch.tensor(3.0)]),
        (torch.unique, [ODD.half()]),
        (everything(torch.unique_consecutive), [RUNS.float()]),
        (everything(torch.unique_consecutive), [RUNS > 1]),
        (torch.unique_consecutive, [ODD]),
        (torch.masked_select, [RUNS.float(), MASK]),
        (torch.masked_select, [torch.tensor([1, 2, 3]), MASK]),
        (torch.masked_select, [RUNS, MASK[0]]),
        (torch.nonzero, [ODD]),
        (torch.nonzero, [RUNS - 1]),
        (torch.nonzero, [MASK]),
    ],
    ids=str,
)
@pytest.mark.parametrize("profile", ["onnxruntime", "trt86"])
def test_found_elements(function, args, profile):
    call = Call(function, args, {})
    found = examine(call, call.tensors, load_profile(profile))
    assert found.outcome is Outcome.NATIVE, found


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.nonzero, [torch.tensor([0.0, 1e-310, NAN, 2.0], dtype=torch.float64)]),
        (torch.nonzero, [torch.tensor([0.0, 1.5], dtype=torch.bfloat16)]),
        (torch.masked_select, [torch.ones(3, dtype=torch.bfloat16), MASK]),
        (everything(torch.unique), [ODD.bfloat16()]),
        (everything(torch.unique), [ODD.double()]),
        (lambda x: x + torch.full((2, 3), 0.1, dtype=torch.float64), [torch.ones(2, 3, dtype=torch.float64)]),
        (lambda x: torch.full_like(x, 0.1), [torch.ones(2, 3, dtype=torch.float64)]),
        (lambda x: x.new_full((2, 2), 0.1), [torch.ones(2, 3, dtype=torch.float64)]),
        (lambda x: x.clone().fill_(0.1), [torch.ones(2, 3, dtype=torch.float64)]),
        (lambda x: torch.where(x > 0, 1 / 3, x), [torch.ones(3, dtype=torch.float64)]),
        (lambda x: x.index_fill(0, torch.tensor([1]), 0.1), [torch.ones(3, dtype=torch.float64)]),
    ],
    ids=str,
)
def test_types_that_engines_know_less_of(function, args):
    call = Call(function, args, {})
    found = examine(call, call.tensors, load_profile("onnxruntime"))
    assert found.outcome is Outcome.NATIVE, found


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool]
)
@pytest.mark.parametrize("number", [0.1, 1 + 2**-9 + 2**-40, -3.7, 2.0])
def test_a_number_is_rounded_as_torch_rounds(dtype, number):
    import onnx_ir as ir

    kind = (
        ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch.")))
        if dtype is not torch.bfloat16
        else ir.DataType.BFLOAT16
    )
    given = translations_exact._rounded(number, kind.numpy())
    assert float(given) == float(torch.scalar_tensor(number, dtype=dtype))


def test_a_complex_constant_is_left_to_others():
    with pytest.raises(NotImplementedError, match="complex"):
        translations_exact.scalar_tensor(1j, 14)
