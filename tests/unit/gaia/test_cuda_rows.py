"""Nests that share rows on a GPU: how many kernels are left, what is kept where, and that the emulation finds nothing wrong."""

from __future__ import annotations

import dataclasses
import re

import pytest
import sympy
import torch
import torch.nn.functional as F

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle, parse_bundle
from ytk_gaia.emulation.build import Check, Emulator
from ytk_gaia.evaluator import emulated
from ytk_gaia.evaluator.arena import Placement
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.session import CandidateFaultError
from ytk_gaia.evaluator.track import Track
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.generator import cuda_candidates, emit_cuda, region_input
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.cuda_cost import LAUNCH_US, Paper, PaperKernel, moved_bytes
from ytk_gaia.generator.cuda_rows import Kept, RowPlanner, Wish, access_of
from ytk_gaia.generator.cuda_schedules import SCHEDULES, CudaSchedule, Rows
from ytk_gaia.generator.cuda_variants import StorageVariant, captured
from ytk_gaia.generator.lowering import LoweringPlan, lower
from ytk_gaia.generator.nest import Nest, NestKind
from ytk_gaia.generator.stored_task import variant_task

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ORIN = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
WARPS = CudaSchedule(Rows.WARP, fuse=True, vector=4)
BLOCKS = CudaSchedule(Rows.BLOCK, fuse=True, vector=4)


# ---- accesses --------------------------------------------------------------------------------------------------------

I0, I1, I2, R0, R1 = (sympy.Symbol(n, integer=True, nonnegative=True) for n in ("i0", "i1", "i2", "r0", "r1"))


def nest(kind, sizes, reduced, outer, loads=(), stores=()):
    found = Nest("b", list(sizes), list(reduced), kind, loads=list(loads), stores=list(stores))
    found.outer = outer
    return found


def test_an_index_is_a_row_and_a_position_or_it_is_not():
    pointwise = nest(NestKind.POINTWISE, (6, 4, 8), (), 1)
    whole = access_of(pointwise, 32 * I0 + 8 * I1 + I2)
    assert (whole.row, whole.first, whole.factor) == (("row", 32), 0, 1)
    # A reduction that numbers the same rows and positions by other loops means the same elements.
    assert access_of(nest(NestKind.REDUCTION, (2, 3), (32,), 2), 96 * I0 + 32 * I1 + R0) == whole
    assert access_of(pointwise, 32 * I0 + 8 * I1 + I2 + 4).first == 4
    assert access_of(pointwise, 3 * I0).factor == 0
    assert access_of(pointwise, 32 * I0 + I1 + 4 * I2) is None  # transposed within the row
    assert access_of(pointwise, 32 * I0 + 31 - 8 * I1 - I2) is None  # backwards
    assert access_of(pointwise, 8 * I1 + I2).row == ("row", 0)  # the same for every row: a weight
    assert not dataclasses.replace(whole, first=2).divides(4)


def test_what_threads_hand_to_one_another_is_in_shared_memory_and_the_rest_in_registers():
    sums = nest(NestKind.REDUCTION, (9,), (40,), 1, [("x", 40 * I0 + R0)], [("s", I0)])
    each = nest(NestKind.POINTWISE, (9, 40), (), 1, [("x", 40 * I0 + I1), ("s", I0)], [("m", 40 * I0 + I1)])
    back = nest(NestKind.POINTWISE, (9, 40), (), 1, [("m", 40 * I0 + 39 - I1)], [("y", 40 * I0 + I1)])
    planner = RowPlanner(lambda name: name, lambda _: 0, lambda _: 1, lambda _: 360)
    plan = planner.plan([sums, each, back], {"s": 1, "m": 40, "y": 40}, Wish(blocks=False, vector=4))
    assert {root: held.kept for root, held in plan.held.items()} == {
        "x": Kept.ARRAY, "s": Kept.NUMBER, "m": Kept.SHARED, "y": Kept.ARRAY,
    }  # fmt: skip
    assert (plan.team, plan.vector, plan.crossing) == (32, 4, {"m"})
    # Nothing handed on: several rows share a warp.
    assert planner.plan([sums, each], {"s": 1, "m": 40}, Wish(blocks=False, vector=4)).team == 16


def test_a_thread_that_has_a_row_to_itself_shares_no_memory():
    first = nest(NestKind.POINTWISE, (9, 3), (), 1, [("x", 3 * I0 + I1)], [("m", 3 * I0 + I1)])
    back = nest(NestKind.POINTWISE, (9, 3), (), 1, [("m", 3 * I0 + 2 - I1)], [("y", 3 * I0 + I1)])
    planner = RowPlanner(lambda name: name, lambda _: 0, lambda _: 1, lambda _: 27)
    plan = planner.plan([first, back], {"m": 3, "y": 3}, Wish(blocks=False, vector=4))
    # Another thread reads it back to front, so a team hands it on.
    assert plan.team == 32
    assert plan.held["m"].kept is Kept.SHARED
    alone = planner.plan(
        [dataclasses.replace(n, sizes=[9, 1]) for n in (first, back)], {"m": 3}, Wish(blocks=False, vector=1)
    )
    assert alone.team == 1
    assert Kept.SHARED not in {held.kept for held in alone.held.values()}


def test_what_others_write_a_part_of_is_kept_in_memory_only():
    part = nest(NestKind.POINTWISE, (9, 40), (), 1, [("x", 40 * I0 + I1)], [("both", 80 * I0 + I1)])
    whole = nest(NestKind.POINTWISE, (9, 80), (), 1, [("both", 80 * I0 + 79 - I1)], [("y", 80 * I0 + I1)])
    planner = RowPlanner(lambda name: name, lambda _: 0, lambda _: 1, lambda _: 720)
    strides, wish = {"both": 80, "y": 80}, Wish(blocks=False, vector=1)
    assert planner.plan([part, whole], strides, wish).held["both"].kept is Kept.SHARED
    plan = planner.plan([part, whole], strides, wish, frozenset({"both"}))
    assert "both" not in plan.held
    assert "both" in plan.crossing  # barriers all the same


def test_a_row_is_not_read_whole_where_its_rest_is_outside_of_the_buffer():
    masked = nest(NestKind.POINTWISE, (9, 40), (), 1, [("x", 20 * I0 + I1), ("x", 20 * I0 + I1)], [("y", 40 * I0 + I1)])
    planner = RowPlanner(lambda name: name, lambda _: 0, lambda _: 1, lambda _: 180)
    assert "x" not in planner.plan([masked, masked], {"y": 40}, Wish(blocks=False, vector=1)).held


# ---- kernels per region ----------------------------------------------------------------------------------------------


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def bound(module, inputs, dynamic=None):
    module = module if isinstance(module, torch.nn.Module) else Call(module)
    dynamic = (dynamic,) if dynamic and not isinstance(module, torch.nn.Sequential) else dynamic
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic)
    return region_input.bind(program, region_input.derive_spec(program, "region"))


def lowered(region):
    plan = LoweringPlan("recompute", "loops", options=inductor.RECOMPUTE_OPTIONS)
    return plan, lower(region.program, plan)


def kernels(region, *schedules):
    """The kernels that schedules leave of the region."""
    found = lowered(region)[1]
    variants = (captured(region.border),)
    return [emit_cuda.emit(found, region.border, schedule, variants).launches for schedule in schedules]


r = torch.randn
REGIONS = {
    "layer_norm_gelu": (torch.nn.Sequential(torch.nn.LayerNorm(384), torch.nn.GELU()), (r(64, 384),), 1),
    "rms_norm": (lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, (r(64, 512), r(512)), 1),
    "softmax": (lambda x: F.softmax(x * 0.125, -1), (r(64, 100),), 1),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (r(64, 1000),), 1),
    "group_norm_silu": (torch.nn.Sequential(torch.nn.GroupNorm(8, 32), torch.nn.SiLU()), (r(2, 32, 14, 14),), 1),
    "instance_norm_relu": (lambda x: F.relu(F.instance_norm(x)), (r(2, 16, 14, 14),), 1),
    "softmax_over_channels": (lambda x: F.softmax(x, 1), (r(2, 21, 16, 16),), 1),
    "layer_norm_of_channels": (
        lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (32,), w, b).permute(0, 3, 1, 2),
        (r(1, 32, 14, 14), r(32), r(32)),
        1,
    ),
    "row_of_65536": (lambda x: F.softmax(x, -1), (r(20, 65536),), 1),
    "cumsum": (lambda x: torch.cumsum(x * 2, -1) + 1, (r(16, 1000),), 1),
    "topk": (lambda x: tuple(torch.topk(x, 5)), (r(16, 100),), 1),
    "mean_of_all": (lambda x: x.mean(), (r(64, 3, 56, 56),), 2),
    "transpose": (lambda x: (x * 2).permute(0, 2, 1).contiguous(), (r(4, 64, 48),), 1),
    "centre": (lambda x: x - x.mean(), (r(16, 64),), 1),
}


@pytest.mark.parametrize("name", REGIONS)
def test_what_passes_rows_on_is_one_kernel(name):
    module, inputs, count = REGIONS[name]
    region = bound(module, inputs)
    assert kernels(region, WARPS, BLOCKS) == [count, count]


def test_dynamic_rows_are_shared_too_and_two_extents_that_happen_to_be_equal_are_not_one():
    batch, other = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("other", min=2, max=64)
    region = bound(lambda x: F.softmax(x, -1), (r(5, 12, 35),), ({0: batch},))
    assert kernels(region, WARPS) == [1]

    def two(x, y):
        return F.softmax(x, -1), F.softmax(y, -1)

    apart = bound(two, (r(12, 35), r(12, 35)), ({0: batch}, {0: other}))
    assert kernels(apart, WARPS) == [2]


def test_a_kernel_has_no_more_arguments_than_a_gpu_takes():
    def long(x):
        found = []
        for k in range(40):
            x = x + x.amax(-1, keepdim=True) * k
            found.append(x * k)
        return tuple(found)

    region = bound(long, (r(64, 64),))
    assert kernels(region, WARPS)[0] > 1


# ---- on the emulation ------------------------------------------------------------------------------------------------


class Kinds(torch.nn.Module):
    """Every kind of group: rows by warps, several rows per warp, rows by threads, scans, sorts, something handed on, one block."""

    def forward(self, x, image, short):
        y = torch.nn.functional.gelu(F.layer_norm(x, (264,)))
        handed = F.softmax(x, -1).flip(-1) + x.cumsum(-1).flip(-1)
        best, places = torch.sort(short, -1)
        return y, handed, best, places, F.softmax(image, 1), F.log_softmax(short, -1), torch.cummax(x, -1)[0]


@pytest.fixture(scope="module")
def made():
    """Region, task, and the texts of both schedules."""
    torch.manual_seed(0)
    region = bound(Kinds(), (r(5, 264), r(1, 5, 12, 16), r(7, 12)))
    variants = (StorageVariant("f32", {DType.INT64: DType.INT32}),)
    task = variant_task(region, variants[0], seed=0, longest_reduction=264, tolerance=None)
    plan, loops = lowered(region)
    texts = {}
    for schedule in (WARPS, BLOCKS):
        kernel = emit_cuda.emit(loops, region.border, schedule, variants)
        candidate = cuda_candidates.CudaCandidate(schedule.rows.value, plan, schedule, kernel)
        meta = cuda_candidates.plugin_meta(candidate, region, variants, task.spec, 0)
        texts[schedule.rows.value] = cuda_candidates.candidate_text(candidate, meta)
    return task, texts


def test_every_kind_of_group_passes_every_check(made, tmp_path):
    task, texts = made
    found = emulated.evaluate({0: task}, texts, ORIN, tmp_path, JudgeOptions(budget_s=600, mode="optional"))
    assert [(c.verdict, c.reason) for c in found.candidates] == [(Verdict.PASSED, "")] * 2


FAULTS = {
    "parts of warps": ("block", "}\n__syncthreads();\ns0 = parts", "}\ns0 = parts"),
    "totals of a scan": ("block", "seen{n}[lane / 32] = some;\n}\n__syncthreads();", "seen{n}[lane / 32] = some;\n}"),
    "a row handed on": ("warp", "__syncwarp();\n{", "{"),
    "a sort of a warp": ("warp", "[]() { __syncwarp(); }", "[]() {}"),
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return Emulator.prepare(tmp_path_factory.mktemp("emulation"), "optional")


@pytest.mark.parametrize("name", FAULTS)
def test_a_missing_barrier_of_each_kind_is_a_race(made, emulator, tmp_path, name):
    task, texts = made
    rows, old, new = FAULTS[name]
    whole = parse_bundle(texts[rows], name)
    lines = re.sub(r"\n\s+", "\n", whole.header + whole.source)
    number = re.search(r"seen(\d+)\[lane", lines)
    if "{n}" in old:
        old, new = old.replace("{n}", number[1]), new.replace("{n}", number[1])
    assert old in lines
    bundle = KernelBundle(header="", source=lines.replace(old, new), meta=whole.meta)
    track = Track(name)
    track.bundle = bundle
    candidate = emulated._Candidate(track, built=emulator.build(bundle, tmp_path, (Check.RACES,)))
    one = emulated._Pass(Check.RACES, 0, Placement.START, [0])
    with pytest.raises(CandidateFaultError) as caught:
        emulated._run_pass(candidate, 0, task, one, JudgeOptions(mode="optional"))
    assert caught.value.verdict is Verdict.NONDETERMINISTIC
    assert "race" in str(caught.value)


# ---- on paper --------------------------------------------------------------------------------------------------------


def test_neighbours_that_read_elements_apart_pay_for_what_lies_between():
    turned = nest(NestKind.POINTWISE, (64, 48), (), 0, [("x", I0 + 64 * I1), ("w", I1)], [("y", 48 * I0 + I1)])
    moved = moved_bytes(turned, I1, lambda _: 4, lambda _: 3072)
    assert moved == {"x": 8 * 4 * 3072, "w": 4 * 48, "y": 4 * 3072}
    assert moved_bytes(turned, None, lambda _: 4, lambda _: 3072)["x"] == 4 * 3072


def test_what_loads_nothing_is_no_template_and_what_reads_anew_pays_for_it():
    paper = Paper(SCHEDULES[0], lambda _: 4, lambda _: 4096, str)
    (filled,) = paper.kernels([nest(NestKind.POINTWISE, (4096,), (), 0, [], [("y", I0)])])
    assert (filled.threads, filled.loaded) == (4096, 0)
    (read,) = paper.kernels([nest(NestKind.REDUCTION, (64,), (64,), 0, [("x", R0)], [("y", I0)])])
    assert read.loaded == 4 * 64 * 64
    assert read.sectors == 4 * (64 + 64)


def test_a_launch_and_idle_threads_cost_on_paper():
    assert PaperKernel(0, 1).us == LAUNCH_US
    assert PaperKernel(1 << 20, 256).us > 30 * PaperKernel(1 << 20, 1 << 16).us
