"""Regions with dynamic axes: one kernel for several shapes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ytk_core.archspec import host_arch_specs
from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.kernel_bundle import parse_bundle, render_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_gaia.evaluator import judge
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.generator import region_input, strategies
from ytk_gaia.generator.bundle import BundleContext, candidate_text
from ytk_gaia.generator.samples import build_task
from ytk_gaia.task_format import read_task, write_task

from fakes.judge_limits import BUDGET_S, PATIENT

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

ARCH = host_arch_specs("ov20264")[0]
DYNAMIC = torch.export.Dim.DYNAMIC


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def r(*shape):
    return torch.randn(*shape)


def linear_attention(a, b):
    """Two parts side by side along a dynamic axis: where the second begins depends on the first."""
    batch, _, height, width = a.shape
    heads = torch.cat([a, b], dim=1).reshape(batch, -1, 12, height * width)
    q, k, v = heads.split(4, dim=2)
    v = F.pad(v, (0, 0, 0, 1), value=1.0)
    out = (v @ k.relu().transpose(-1, -2)) @ q.relu()
    return (out[:, :, :-1] / (out[:, :, -1:] + 1e-6)).reshape(batch, -1, height, width)


# Name: function, inputs, dynamic axes of each input.
REGIONS = {
    "softmax_product": (lambda x, w: torch.softmax(x @ w, -1), (r(6, 8), r(8, 12)), ((0,), (1,))),
    "upsample_add": (
        lambda x, y: F.interpolate(x, scale_factor=2, mode="nearest") + y,
        (r(1, 3, 6, 10), r(1, 3, 12, 20)),
        ((2, 3), (2, 3)),
    ),
    "norm_over_a_dynamic_axis": (lambda x: F.layer_norm(x.transpose(1, 2), (4,)).sum(1), (r(2, 4, 40),), ((2,),)),
    "depthwise": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=4),
        (r(1, 4, 13, 16), r(4, 1, 3, 3)),
        ((2, 3), ()),
    ),
    "linear_attention": (linear_attention, (r(1, 24, 4, 6), r(1, 24, 4, 6)), ((1, 2, 3), (1, 2, 3))),
    "sort": (lambda x: x.sort(-1)[0], (r(5, 30),), ((0, 1),)),
}


def region_of(name):
    function, args, axes = REGIONS[name]
    shapes = tuple(dict.fromkeys(one, DYNAMIC) for one in axes)
    program = torch.export.export(Call(function).eval(), args, dynamic_shapes=(shapes,))
    return region_input.bind(program, region_input.derive_spec(program, name))


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """One kernel per region, judged at several shapes, in as few compilations as there are regions."""
    torch.manual_seed(3)
    found = {}
    for name in REGIONS:
        region = region_of(name)
        kernels, _ = strategies.generate_candidates(region, ["loops"], ARCH, 1)
        task = build_task(region, seed=1, longest_reduction=64)
        text = candidate_text(kernels[0], BundleContext(region, task.spec, DeploymentTarget.CPU, 1))
        directory = tmp_path_factory.mktemp(name)
        write_task(directory, task)
        options = JudgeOptions(budget_s=BUDGET_S, threads=2, mode="required", limits=PATIENT, in_full=True)
        fixed = msgspec.structs.replace(task.spec, rounds=2)
        task = type(task)(fixed, read_task(directory).samples)
        found[name] = (region, task, text, judge.evaluate(task, {name: text}, ARCH, directory, options))
    return found


@pytest.mark.parametrize("name", REGIONS)
def test_one_kernel_is_right_at_every_shape(judged, name):
    region, task, text, evaluation = judged[name]
    result = evaluation.candidates[0]
    assert result.verdict is Verdict.PASSED, f"{result.reason}\n{result.log}\n{task.spec.notes}"
    names = {s.name for s in task.spec.samples}
    assert {"min-0", "max-1", "random-0"} <= names, task.spec.notes
    meta = parse_bundle(text, name).meta
    assert [[d is None for d in i.dims] for i in meta.inputs] == [
        [axis in axes for axis in range(len(i.dims))] for i, axes in zip(meta.inputs, REGIONS[name][2], strict=True)
    ]
    assert {(e.input, e.axis) for e in meta.extents} == {
        (i, axis) for i, axes in enumerate(REGIONS[name][2]) for axis in axes
    }
    assert all(e.min < e.opt < e.max for e in meta.extents)
    for index, sample in enumerate(task.samples):
        dims = [list(a.shape) for a in sample.inputs]
        shapes = [tuple(shape_expr.evaluate(e, dims) for e in o.shape) for o in meta.outputs]
        assert shapes == [o.shape for o in sample.outputs], task.spec.samples[index].name
    assert region.border.ranges


def test_a_kernel_made_for_the_captured_shape_is_rejected(judged, tmp_path):
    _, task, text, _ = judged["softmax_product"]
    bundle = parse_bundle(text, "x")
    inputs = [msgspec.structs.replace(bundle.meta.inputs[0], dims=[6, 8]), bundle.meta.inputs[1]]
    meta = msgspec.structs.replace(bundle.meta, inputs=inputs, extents=[])
    declared = render_bundle(msgspec.structs.replace(bundle, meta=meta))
    assert "= in[0].dims[0];" in bundle.source
    source = bundle.source.replace("= in[0].dims[0];", "= 6;", 1)
    hard_coded = render_bundle(msgspec.structs.replace(bundle, source=source))
    options = JudgeOptions(budget_s=BUDGET_S, threads=1, mode="required", limits=PATIENT, in_full=True)
    results = judge.evaluate(task, {"declared": declared, "hard_coded": hard_coded}, ARCH, tmp_path, options).candidates
    assert results[0].verdict is Verdict.WRONG_SHAPE
    assert "dynamic" in results[0].reason
    assert results[1].verdict in {Verdict.RUNTIME_ERROR, Verdict.WRONG_VALUE}


def test_an_axis_that_the_program_fixes_is_named():
    program = torch.export.export(Call(lambda x: x * 2).eval(), (r(4, 6),))
    spec = region_input.derive_spec(program, "fixed")
    dynamic = msgspec.structs.replace(spec.inputs[0], dynamic_axes=(1,))
    with pytest.raises(UserError, match="axis 1 is declared dynamic") as caught:
        region_input.bind(program, msgspec.structs.replace(spec, inputs=(dynamic,)))
    assert caught.value.code == "axis_specialised"


def test_the_shapes_of_a_dynamic_task_survive_writing(judged, tmp_path):
    _, task, _, _ = judged["sort"]
    write_task(tmp_path, task)
    again = read_task(tmp_path)
    assert again.spec == task.spec
    assert all(np.array_equal(a.inputs[0], b.inputs[0]) for a, b in zip(again.samples, task.samples, strict=True))
    assert {s.inputs[0].shape for s in again.samples} == {
        (5, 30),
        *(g.inputs[0] for s in task.spec.samples if (g := s.shapes)),
    }
