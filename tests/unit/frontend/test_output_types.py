"""Outputs of types that a target lacks go out in a wider one, and the reference says so."""

import pytest
import torch

from ytk_core.dtypes import DType
from ytk_core.formats.reference import read_reference
from ytk_core.targets import load_profile

from conformance.examine import Call, examine
from conformance.outcome import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
MODEL = """
class Model(nn.Module):
    def forward(self, x):
        return x * 2, (x * 3).to({dtype})

def get_fwd_args():
    return (torch.tensor([1.0, 1.1, -2.7]),)
"""


@pytest.mark.parametrize(("dtype", "wide"), [("bfloat16", DType.FLOAT32), ("int8", DType.INT32)])
def test_a_type_that_the_target_lacks_goes_out_wider(run_prepare, dtype, wide):
    report, out = run_prepare(MODEL.format(dtype=f"torch.{dtype}"), profile="trt86", samples=1)
    reference = read_reference(out / "model.reference.npz")
    assert [each.dtype for each in reference.outputs] == [DType.FLOAT32, wide]
    wanted = (torch.tensor([1.0, 1.1, -2.7]) * 3).to(getattr(torch, dtype))
    assert reference.samples[0].outputs["output_1"].tolist() == wanted.to(getattr(torch, str(wide))).tolist()
    assert [row.name for row in report.rows] == ["ToCopy"]
    assert any("'output_1'" in note and str(wide) in note for note in report.notes)


@pytest.mark.parametrize(("profile", "dtype"), [("onnxruntime", torch.int8), ("trt86", torch.uint8)])
def test_a_target_that_has_the_type_is_given_it(profile, dtype):
    call = Call(lambda x: x.to(dtype), [torch.tensor([1.0, 2.7])], {})
    found = examine(call, call.tensors, load_profile(profile))
    assert found.outcome is Outcome.NATIVE
