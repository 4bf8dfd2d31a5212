"""CUDA C++ from loop IR: which threads do what, storage types, and whole regions on the emulation."""

from __future__ import annotations

import re

import pytest
import sympy
import torch

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.kernel_bundle import read_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget, Format, Role
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.generator.border import Border, KernelTensor
from ytk_gaia.generator.cuda_scatter import separable
from ytk_gaia.generator.cuda_schedules import owners_for
from ytk_gaia.generator.cuda_variants import captured, tensorrt_variants, with_layouts
from ytk_gaia.library import generate_and_choose

from fakes.judge_limits import BUDGET_S

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ORIN, THOR = "arm64-sm87-dos6010-cu114-trt86", "amd64-sm90-linux-cu130-trt1014"


# ---- which iterations of a scatter never meet ------------------------------------------------------------------------


I0, I1, T = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("i0", "i1", "t3"))


@pytest.mark.parametrize(
    ("targets", "sizes", "found"),
    [
        ([8 * T + I1], (5, 8), [1]),  # index_add of rows: columns are their own
        ([8 * T + I1], (5, 9), []),  # a column beyond the row would meet the next one's
        ([T + 6 * I0], (5, 1), [0, 1]),  # every row has elements of its own
        ([T + 5 * I0], (5, 1), [1]),  # ... unless they overlap
        ([I0 + 5 * I1], (5, 4), [0, 1]),  # a permutation
        ([I0 + I1], (5, 4), []),
        ([I0 * I1 + T], (5, 4), []),
        ([I0, I0 + 1], (5, 1), []),  # two places at once
        ([], (5, 1), []),
    ],
)
def test_variables_that_decide_where_an_iteration_writes(targets, sizes, found):
    assert separable(targets, [I0, I1], sizes, {"t3": 6}) == found


def test_owners_are_a_power_of_two_and_no_more_than_there_is_to_own():
    assert owners_for(1, 100, 1000) == 512
    assert owners_for(4096, 100, 1000) == 2
    assert owners_for(1, 1 << 22, 1000) == 1
    assert owners_for(1, 100, 1) == 1


# ---- storage types ---------------------------------------------------------------------------------------------------


def border(*dtypes):
    tensors = tuple(KernelTensor(f"x{k}", dtype, (4,)) for k, dtype in enumerate(dtypes))
    return Border(tensors, tensors[:1], tuple(range(len(tensors))))


def test_tensorrt_gets_fp32_and_fp16_and_no_int64_before_ten():
    old, new = ArchSpec.parse(ORIN), ArchSpec.parse(THOR)
    mixed = border(DType.FLOAT32, DType.INT64, DType.BOOL)
    assert [v.id for v in tensorrt_variants(mixed, old, "captured")] == ["f32", "f16"]
    half = tensorrt_variants(mixed, old, "captured")[1]
    assert [half.of(t) for t in mixed.inputs] == [DType.FLOAT16, DType.INT32, DType.BOOL]
    assert [v.of(mixed.inputs[1]) for v in tensorrt_variants(mixed, new, "fp32")] == [DType.INT64]
    assert [v.id for v in tensorrt_variants(border(DType.FLOAT16), old, "captured")] == ["f16"]
    assert [v.id for v in tensorrt_variants(border(DType.BFLOAT16), new, "captured")] == ["bf16"]
    assert [v.id for v in tensorrt_variants(border(DType.INT32), old, "captured")] == ["plain"]
    assert captured(mixed).of(mixed.inputs[1]) is DType.INT64
    with pytest.raises(UserError) as caught:
        tensorrt_variants(mixed, old, "bf16")
    assert caught.value.code == "precision_not_available"


# ---- whole regions ---------------------------------------------------------------------------------------------------


class Mixed(torch.nn.Module):
    """A norm, a sort, a scatter with sums, indices as input: several outputs and kernels."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(40)

    def forward(self, x, index):
        y = torch.nn.functional.gelu(self.norm(x))
        values, order = torch.sort(y, dim=-1)
        return values, order, torch.zeros(7, 40).index_add(0, index, y)


class Depthwise(torch.nn.Module):
    """Pointwise and depthwise operators on images of eight channels: what kHWC8 is for."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x, y):
        return torch.relu(self.convolution(x)) + y, x * 2


class Dynamic(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1), x.amax((1, 2)), x.cumsum(1)


def choose(tmp_path, module, inputs, dynamic=None, **config):
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "Region.pt2")
    settings = {"deployment_target": "tensorrt", "strategies": "loops", "budget": BUDGET_S, **config}
    report = generate_and_choose(
        tmp_path / "Region.pt2", settings, tmp_path / "out.py", arch_spec=ORIN, log=lambda _text: None
    )
    return report, read_bundle(tmp_path / "out.py")


def test_a_region_becomes_a_bundle_with_two_variants_that_the_emulation_passes(tmp_path):
    torch.manual_seed(0)
    inputs = (torch.randn(9, 40), torch.tensor([0, 3, 3, 6, 1, 0, 3, 5, 5]))
    report, bundle = choose(tmp_path, Mixed(), inputs, candidates=2)
    assert {c.verdict for c in report.candidates} == {Verdict.PASSED}, report.candidates
    assert report.why.startswith("not measured")
    assert bundle.meta.deployment_target is DeploymentTarget.TENSORRT
    first, second = bundle.meta.variants
    assert [t.dtype for t in first.inputs[:1]] + [t.dtype for t in second.inputs[:1]] == [DType.FLOAT32, DType.FLOAT16]
    # 8.6 hands int32 over where the model has int64.
    assert second.outputs[1].dtype is DType.INT32
    assert second.inputs[-1].dtype is DType.INT32
    assert "__shared__" in bundle.source or "shuffle_down" in bundle.source
    assert not re.search(r"\bcuda[A-Z]\w+\(|<<<", bundle.source)  # the driver API only, through ytk_cuda.h
    facts = report.candidates[0].device
    assert facts.sm == "sm_87"
    assert {k.name.rsplit("_", 1)[1] for k in facts.kernels} >= {"f32", "f16"}


def test_images_of_eight_channels_have_a_third_variant_in_khwc8(tmp_path):
    torch.manual_seed(0)
    inputs = (torch.randn(2, 8, 5, 7), torch.randn(2, 8, 5, 7))
    report, bundle = choose(tmp_path, Depthwise(), inputs, candidates=1, precision="fp16")
    assert report.candidates[0].verdict is Verdict.PASSED, report.candidates
    linear, packed = bundle.meta.variants
    assert packed.id == "f16_hwc8"
    assert {t.format for t in packed.outputs} == {Format.HWC8}
    assert Format.LINEAR in {t.format for t in packed.inputs}  # the weights
    assert {t.format for t in linear.inputs} == {Format.LINEAR}
    assert "from_hwc8<8, 35>" in bundle.source  # threads side by side are channels side by side


def test_khwc8_where_the_region_does_not_allow_it_is_said_before_anything_is_measured():
    image = KernelTensor("x", DType.FLOAT32, (1, 12, 4, 4))
    odd = Border((image,), (image,), (0,))
    variants = tensorrt_variants(odd, ArchSpec.parse(ORIN), "captured")
    assert with_layouts(variants, odd, [Role.ACTIVATION], "auto") == variants
    with pytest.raises(UserError) as caught:
        with_layouts(variants, odd, [Role.ACTIVATION], "khwc8")
    assert caught.value.code == "layout_not_available"


def test_dynamic_extents_are_judged_at_other_shapes_too(tmp_path):
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    report, bundle = choose(
        tmp_path, Dynamic(), (torch.randn(5, 12, 35),), {"x": {0: batch}}, candidates=1, precision="fp32"
    )
    assert report.candidates[0].verdict is Verdict.PASSED, report.candidates
    assert bundle.meta.outputs[1].shape == ["in0.d0"]
    assert bundle.meta.inputs[0].dims == [None, 12, 35]
    assert bundle.meta.extents[0].min < 5 < bundle.meta.extents[0].max
