"""How nests are cut, fused by rows and run side by side on a CPU: the text where it matters, and the numbers against torch."""

from __future__ import annotations

import pytest
import sympy
import torch
import torch.nn.functional as F

from tests.unit.gaia.test_generator import Call, bound, compile_kernels, outputs_like, run_torch
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.emit_cpp import emit
from ytk_gaia.generator.loop_shape import LoopShape, find_shape, row_offset
from ytk_gaia.generator.lowering import LoweringPlan, lower
from ytk_gaia.generator.nest import loop_variables
from ytk_gaia.generator.schedules import SCHEDULES, Schedule, Vector
from ytk_gaia.generator.statement_order import by_load
from ytk_gaia.generator.strategies import REGISTRY, region_operators

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning"),
]
ROWS = Schedule(1, Vector.ACROSS, split=True, jam=8, fuse=True, dynamic=True)
JAM = Schedule(0, Vector.ACROSS, jam=4)
TRIED = (
    ROWS,
    Schedule(2, Vector.ACROSS, split=True, jam=4, dynamic=True),
    Schedule(1, Vector.ALONG, fuse=True, dynamic=True),
)


def kernel(region, schedule, plan=None):
    return emit(lower(region.program, plan or LoweringPlan("base", "loops")), region.border, schedule)


def plan_named(region, name):
    plans = [p for s in REGISTRY.values() for p in s.plans(region_operators(region.program))]
    return next(p for p in plans if p.name == name)


# ---- cutting ---------------------------------------------------------------------------------------------------------


def test_a_loop_is_cut_where_its_index_divides():
    i, j = loop_variables(2)
    index = inductor.FloorDiv(i, 2) * 28 + inductor.ModularIndexing(j, 7, 8)
    shape = find_shape([index], [i, j], [sympy.Integer(56), sympy.Integer(112)], [], [])
    assert shape.sizes == ((28, 2), (2, 8, 7))
    assert find_shape([index], [i, j], [sympy.Integer(57), sympy.Integer(10)], [], []).sizes == ((57,), (10,))


def test_outer_iterations_may_end_inside_a_loop():
    shape = LoopShape.whole([sympy.Integer(196 * 384)], [])
    assert shape.cut_at(196).sizes == ((196, 384),)
    assert shape.cut_at(197) is None
    two = LoopShape.whole([sympy.Integer(4), sympy.Integer(6)], [])
    assert two.cut_at(4) == two
    assert two.cut_at(8).sizes == ((4,), (2, 3))


def test_rows_of_a_buffer():
    i, j, k = loop_variables(3)
    ranges = {k: sympy.Integer(10)}
    leading = [(i, 4), (j, 5)]
    assert row_offset(50 * i + 10 * j + k, leading, ranges) == (10, 0, 9)
    assert row_offset(50 * i + 10 * j + k - 1, leading, ranges) == (10, -1, 8)
    assert row_offset(50 * i + 9 * j + k, leading, ranges) is None
    assert row_offset(10 * j + k, leading, ranges) is None


def test_statements_follow_their_loads():
    body = [
        "const auto t1 = p + (i1);",
        "const auto t2 = ytk::load(t1[56L]);",
        "const auto t3 = ytk::load(t1[0L]);",
        "const auto t4 = ytk::op_add(t2, t3);",
        "const auto t5 = ytk::op_neg(t3);",
        "ytk::store(y[i1], t4);",
        "ytk::store(z[i1], t5);",
    ]
    ordered = by_load(body)
    assert sorted(ordered) == sorted(body)
    assert ordered.index(body[2]) < ordered.index(body[4]) < ordered.index(body[6]) < ordered.index(body[1])
    assert ordered.index(body[3]) < ordered.index(body[5])


# ---- the text --------------------------------------------------------------------------------------------------------


def test_upsampling_divides_nothing():
    region = bound(
        Call(lambda x, y: F.interpolate(x, scale_factor=2, mode="nearest") + y),
        (torch.randn(1, 8, 28, 28), torch.randn(1, 8, 56, 56)),
    )
    loops = kernel(region, JAM).source.partition("ytk_launch")[2]
    assert " / " not in loops
    assert "%" not in loops


def test_a_layer_norm_is_one_parallel_loop_with_rows_of_its_own():
    module = torch.nn.Sequential(torch.nn.LayerNorm(48), torch.nn.GELU())
    source = kernel(bound(module, (torch.randn(64, 48),)), ROWS).source
    assert source.count("#pragma omp parallel") == 1
    assert "shared < 64" in source
    assert "thread_number()" in source


def test_what_crosses_rows_is_not_fused():
    """A roll along the rows reads another row's result; the reduction over them needs all."""
    region = bound(Call(lambda x: (x.exp() / x.exp().sum(0)).roll(1, 0).sum(1)), (torch.randn(64, 48),))
    source = kernel(region, ROWS).source
    assert source.count("for (int64_t shared") <= 1
    assert kernel(region, ROWS).nests > 1


def test_a_row_is_more_than_one_element():
    """Two nests over the same elements could share every loop, and would have no vector lanes left."""
    region = bound(
        torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, groups=16), torch.nn.ReLU()), (torch.randn(1, 16, 9, 26),)
    )
    source = kernel(region, ROWS).source
    assert "shared < 112;" in source
    assert "shared < 2688" not in source


def test_side_by_side_rows_share_their_loads():
    region = bound(torch.nn.Conv2d(8, 8, 5, padding=2, groups=8), (torch.randn(1, 8, 20, 21),))
    plan = plan_named(region, "padded-taps")
    one = kernel(region, Schedule(0, Vector.ACROSS), plan).source
    four = kernel(region, JAM, plan).source
    assert "next += 4" in four
    assert "next += 4" not in one
    jammed = four.partition("next += 4")[2].partition("for (int64_t i1 = next")[0]
    # Eight rows of five, and the weights: not four times twenty-five.
    assert jammed.count("ytk::load(") <= 8 * 5 + 25 + 1


# ---- the numbers -----------------------------------------------------------------------------------------------------


def attention(q, k, v):
    q, k = F.relu(q), F.relu(k)
    v = F.pad(v, (0, 1), value=1.0)
    out = q @ (k.transpose(-1, -2) @ v)
    return out[..., :-1] / (out[..., -1:] + 1e-15)


def partition(x):
    n, h, w, c = x.shape
    return x.view(n, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


REGIONS = {
    "norm": (
        torch.nn.Sequential(torch.nn.LayerNorm(131), torch.nn.GELU()),
        (torch.randn(37, 131),),
    ),
    "softmax": (Call(lambda x: torch.softmax(x * 2, -1).cumsum(-1)), (torch.randn(3, 23, 129),)),
    "attention": (Call(attention), (torch.rand(1, 5, 67, 18), torch.rand(1, 5, 67, 18), torch.rand(1, 5, 67, 17))),
    "sdpa": (
        Call(F.scaled_dot_product_attention),
        (torch.randn(1, 6, 33, 24), torch.randn(1, 6, 33, 24), torch.randn(1, 6, 33, 24)),
    ),
    "partition": (Call(partition), (torch.randn(2, 14, 21, 9),)),
    "upsample": (
        Call(lambda x, y: F.relu(F.interpolate(x, scale_factor=3, mode="nearest") + y)),
        (torch.randn(2, 3, 13, 11), torch.randn(2, 3, 39, 33)),
    ),
    "depthwise3": (
        torch.nn.Sequential(torch.nn.Conv2d(6, 6, 3, padding=1, groups=6), torch.nn.SiLU()),
        (torch.randn(2, 6, 19, 23),),
    ),
    "depthwise5s2": (torch.nn.Conv2d(6, 12, 5, 2, padding=2, groups=6, bias=False), (torch.randn(1, 6, 33, 31),)),
    "depthwise7d2": (
        torch.nn.Conv2d(4, 4, 7, padding=6, dilation=2, groups=4),
        (torch.randn(1, 4, 21, 40),),
    ),
    "sort_rows": (Call(lambda x: x.sort(-1)[0] - x.amax(-1, keepdim=True)), (torch.randn(19, 45),)),
    "concat": (Call(lambda x: torch.cat([x.exp(), -x], -1).sum(-1) + x[:, 0]), (torch.randn(40, 37),)),
    "halves": (
        torch.nn.Sequential(torch.nn.LayerNorm(70), torch.nn.GELU()).to(torch.bfloat16),
        (torch.randn(21, 70).to(torch.bfloat16),),
    ),
}


def test_the_schedules_tried_here_are_in_use():
    assert set(TRIED) <= set(SCHEDULES)


def test_every_schedule_gives_what_torch_gives(tmp_path):
    """Regions by the schedules that fuse, jam and deal out, in one compilation: odd extents, more rows than fit the blocks, tails of every width."""
    torch.manual_seed(0)
    kernels, cases = [], []
    for name, (module, args) in REGIONS.items():
        module.eval()
        region = bound(module, args)
        plans = [LoweringPlan("base", "loops")]
        plans += [plan_named(region, "padded-taps")] if name.startswith("depthwise") else []
        seen = set()
        for plan in plans:
            lowered = lower(region.program, plan)
            for schedule in TRIED:
                made = emit(lowered, region.border, schedule)
                if made.source not in seen:
                    seen.add(made.source)
                    kernels.append(made)
                    cases.append((name, schedule.name, region, module, args))
    libraries = compile_kernels(kernels, tmp_path)
    for library, (name, schedule, region, module, args) in zip(libraries, cases, strict=True):
        expected = run_torch(module, args)
        got = outputs_like(expected)
        weights = [t.detach() for t in region.program.state_dict.values()]
        assert library.launch((*weights, *args), got, threads=3) == 0, (name, schedule)
        limit = 2e-2 if got[0].dtype is torch.bfloat16 else 2e-5
        error = (got[0].double() - expected[0].double()).abs().max() / expected[0].double().abs().max()
        assert error < limit, (name, schedule, float(error))
