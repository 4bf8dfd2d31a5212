"""Generated C++ against torch, called through the real launcher ABI."""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ytk_core.abi import ctypes_abi, include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.cpu_build import cxx_flags
from ytk_core.dtypes import ONNX_NUMBER, DType
from ytk_core.errors import FormatError, UserError
from ytk_gaia.generator import inductor_adapter, region_input, strategies
from ytk_gaia.generator.border import EmittedKernel
from ytk_gaia.generator.cpp_printer import runtime_header
from ytk_gaia.generator.emit_cpp import emit
from ytk_gaia.generator.lowering import LoweringPlan, lower
from ytk_gaia.generator.schedules import SCHEDULES, Schedule, Vector

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning"),  # nn.GRU under torch.export
]

ARCH = "amd64-cpuv3-linux-glibc236-ov20264"


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class NormGelu(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return F.gelu(self.norm(x))


def r(*shape):
    return torch.randn(*shape)


def grid(*shape):
    return torch.rand(*shape) * 2.4 - 1.2


def integers(high, *shape, dtype=torch.int64):
    return torch.randint(0, high, shape, dtype=dtype)


REGIONS: dict[str, Any] = {
    "fold": lambda: (nn.Fold((14, 14), 3, padding=1), (r(2, 4 * 9, 196),)),
    "fold_strided": lambda: (nn.Fold((20, 24), (4, 3), stride=(3, 2), padding=(1, 0)), (r(2, 5 * 12, 77),)),
    "fold_dilated_unbatched": lambda: (
        nn.Fold((20, 24), (4, 3), stride=(2, 1), dilation=(2, 3), padding=(1, 0)),
        (r(5 * 12, 8 * 18),),
    ),
    "fold_large_kernel": lambda: (nn.Fold((16, 16), (8, 8)), (r(1, 2 * 64, 81),)),
    "grid5d": lambda: (
        Call(lambda x, g: F.grid_sample(x, g, align_corners=False)),
        (r(1, 3, 5, 6, 7), grid(1, 4, 5, 6, 3)),
    ),
    "grid5d_nearest_reflect": lambda: (
        Call(lambda x, g: F.grid_sample(x, g, mode="nearest", padding_mode="reflection", align_corners=True)),
        (r(2, 3, 5, 6, 7), grid(2, 4, 5, 6, 3)),
    ),
    "grid5d_border": lambda: (
        Call(lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True)),
        (r(1, 2, 5, 6, 7), grid(1, 3, 4, 5, 3)),
    ),
    "grid4d": lambda: (Call(lambda x, g: F.grid_sample(x, g, align_corners=False)), (r(1, 4, 9, 11), grid(1, 7, 8, 2))),
    "layernorm_gelu": lambda: (NormGelu(), (r(20, 96),)),
    "attention": lambda: (
        Call(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v),
        (r(1, 2, 24, 16), r(1, 2, 24, 16), r(1, 2, 24, 16)),
    ),
    "sdpa": lambda: (Call(F.scaled_dot_product_attention), (r(1, 2, 24, 16), r(1, 2, 24, 16), r(1, 2, 24, 16))),
    "conv": lambda: (nn.Conv2d(6, 8, 3, padding=1, stride=2), (r(1, 6, 13, 14),)),
    "conv_depthwise": lambda: (nn.Conv2d(16, 16, 3, padding=1, groups=16), (r(1, 16, 15, 15),)),
    "conv3d_grouped": lambda: (nn.Conv3d(4, 6, 3, padding=1, groups=2), (r(2, 4, 5, 6, 7),)),
    "conv1d_unbatched": lambda: (nn.Conv1d(4, 6, 3, dilation=2, bias=False), (r(4, 20),)),
    "conv_transposed": lambda: (nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1), (r(1, 8, 7, 7),)),
    "conv_transposed_grouped": lambda: (
        nn.ConvTranspose2d(8, 8, 3, stride=3, padding=2, dilation=2, groups=4),
        (r(1, 8, 5, 7),),
    ),
    "cumsum": lambda: (Call(lambda x: x.cumsum(1)), (r(4, 50),)),
    "sort": lambda: (Call(lambda x: x.sort(-1)), (r(6, 70),)),
    "sort_long_descending": lambda: (Call(lambda x: x.sort(0, descending=True)), (r(700, 3),)),
    "topk": lambda: (Call(lambda x: x.topk(5, -1)), (r(6, 70),)),
    "scatter_add": lambda: (Call(lambda x, i, v: x.scatter_add(0, i, v)), (r(16, 8), integers(16, 12, 8), r(12, 8))),
    "index_put_accumulate": lambda: (
        Call(lambda x, i, v: x.index_put((i,), v, accumulate=True)),
        (r(16, 8), integers(16, 12), r(12, 8)),
    ),
    "upsample_add": lambda: (
        Call(lambda x, y: F.interpolate(x, scale_factor=2, mode="nearest") + y),
        (r(1, 4, 7, 9), r(1, 4, 14, 18)),
    ),
    "bicubic": lambda: (Call(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")), (r(1, 3, 7, 7),)),
    "maxpool": lambda: (nn.MaxPool2d(3, 2, 1), (r(1, 4, 14, 14),)),
    "several_outputs": lambda: (Call(lambda x: (x.amax(-1), x.argmax(-1), x.T, x)), (r(9, 33),)),
    "same_output_twice": lambda: (Call(lambda x: ((y := x * 2), y)), (r(9, 3),)),
    "int64_index": lambda: (Call(F.embedding), (integers(50, 4, 7), r(50, 12))),
    "int8_wraps": lambda: (
        Call(lambda x, y: (x + y, x * y, x // 3)),
        (integers(127, 50, dtype=torch.int8), integers(127, 50, dtype=torch.int8)),
    ),
    "bool": lambda: (
        Call(lambda x, m: (torch.where(m, x, -x), m.logical_not(), (x > 0) & m)),
        (r(5, 9), torch.rand(5, 9) > 0.5),
    ),
    "zero_d": lambda: (Call(lambda x, s: x.sum() + s), (r(7, 5), torch.tensor(2.5))),
    "empty": lambda: (Call(lambda x: x * 2), (r(0, 4),)),
    "empty_sum": lambda: (Call(lambda x: x.sum(0)), (r(0, 4),)),
    "concat": lambda: (Call(lambda x, y: torch.cat([x * 2, y, x], 1)), (r(3, 4), r(3, 5))),
    "float16": lambda: (Call(lambda x: torch.softmax(x.relu() * 1.5, -1)), (r(8, 40).half(),)),
    "bfloat16": lambda: (Call(lambda x, w: F.gelu(x @ w)), (r(8, 40).bfloat16(), r(40, 9).bfloat16())),
    "float64": lambda: (Call(lambda x: x.logsumexp(-1)), (r(8, 40).double(),)),
    "constants": lambda: (
        Call(lambda x: x * torch.arange(12).reshape(3, 4) + torch.tensor([[1.5, 2.0, 3.0, 4.0]])),
        (r(3, 4),),
    ),
    "variance": lambda: (Call(lambda x: (x.var(0), x.std())), (r(60, 9),)),
    "batch_norm": lambda: (nn.BatchNorm2d(5), (r(2, 5, 4, 4),)),
    "gru": lambda: (nn.GRU(6, 5), (r(3, 2, 6),)),
    "nan_and_inf": lambda: (
        Call(lambda x: (x.amax(-1), torch.minimum(x, -x), x.sort(-1)[0])),
        (torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), -1.0, float("-inf")]]),),
    ),
    "cdist": lambda: (Call(torch.cdist), (r(5, 7), r(6, 7))),
}

RECOMPUTED = {"grid5d", "layernorm_gelu", "bicubic", "concat"}
RELATIVE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float64: 1e-12}


CONTEXT_SIZE = ctypes.sizeof(ctypes_abi.Context)


def as_c(tensor):
    dims = (ctypes.c_int64 * 8)(*tensor.shape)
    number = ONNX_NUMBER[DType(str(tensor.dtype).removeprefix("torch."))]
    return ctypes_abi.Tensor(tensor.data_ptr(), number, tensor.dim(), dims, 0, 0, 1.0, 0)


@dataclass
class Library:
    """A compiled kernel."""

    handle: ctypes.CDLL
    number: int
    kernel: EmittedKernel

    def launch(self, inputs, outputs, threads=2, workspace_bytes=None, size=CONTEXT_SIZE):
        need = self.kernel.fixed_workspace_bytes + threads * self.kernel.per_thread_workspace_bytes
        room = need if workspace_bytes is None else workspace_bytes
        memory = torch.empty(room + 64, dtype=torch.uint8)
        start = (memory.data_ptr() + 63) // 64 * 64
        context = ctypes_abi.Context(size, 1, None, 0, 0, start, room, None, threads, 0)
        ins = (ctypes_abi.Tensor * max(1, len(inputs)))(*map(as_c, inputs))
        outs = (ctypes_abi.Tensor * max(1, len(outputs)))(*map(as_c, outputs))
        launch = getattr(self.handle, f"ytk_launch_{self.number}")
        return launch(ctypes.byref(context), ins, len(inputs), outs, len(outputs))


def compile_kernels(kernels, tmp_path):
    """Compile several kernels in one run of the compiler, each under a name of its own, and load them."""
    source, library = tmp_path / "k.cpp", tmp_path / "k.so"
    text = f'#include "ytk_kernel.h"\n{runtime_header()}\n'
    for count, kernel in enumerate(kernels):
        renamed = kernel.source.replace("ytk_launch", f"ytk_launch_{count}").replace(
            "ytk_workspace", f"ytk_workspace_{count}"
        )
        text += f"namespace kernel{count} {{\n{renamed}\n}}\n"
    source.write_text(text)
    # -O1: these tests are about what is computed, not how fast; the hidden symbols are made visible for ctypes.
    flags = [*cxx_flags(ArchSpec.parse(ARCH)), "-fvisibility=default", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = ["g++", *flags, "-I", str(include_dir()), str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    handle = ctypes.CDLL(str(library))
    return [Library(handle, count, kernel) for count, kernel in enumerate(kernels)]


def export(module, args):
    return torch.export.export(module.eval(), args)


def outputs_like(expected):
    # Poisoned: an element that is not written shows.
    return [torch.full(t.shape, 77, dtype=t.dtype) for t in expected]


def assert_matches(got, expected):
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        if not e.dtype.is_floating_point:
            assert torch.equal(g, e)
            continue
        scale = float(e.double()[e.isfinite()].abs().max()) if e.isfinite().any() else 1.0
        limit = RELATIVE.get(e.dtype, 4e-6) * max(scale, 1e-6)
        assert torch.allclose(g.double(), e.double(), rtol=0, atol=limit, equal_nan=True)


def bound(module, args):
    program = export(module, args)
    return region_input.bind(program, region_input.derive_spec(program, "region"))


def plans_of(region, names):
    operators = strategies.region_operators(region.program)
    return [p for s in strategies.REGISTRY.values() for p in s.plans(operators) if p.name in names]


def kernels_of(region, plans=("base", "gather"), schedules=(SCHEDULES[1],)):
    """Emit every plan of the region, lowered once each, with every schedule."""
    kernels = {}
    for plan in plans_of(region, plans):
        lowered = lower(region.program, plan)
        for schedule in schedules:
            kernel = emit(lowered, region.border, schedule)
            kernels.setdefault(kernel.source, kernel)
    return list(kernels.values())


def test_every_private_symbol_exists():
    assert inductor_adapter.check_symbols() == []
    assert len(inductor_adapter.SYMBOLS) > 20


def test_a_missing_private_symbol_is_named(monkeypatch):
    gone = inductor_adapter.PrivateSymbol("torch._inductor.ir", "NotThere", "a seeded fault")
    monkeypatch.setattr(inductor_adapter, "SYMBOLS", [*inductor_adapter.SYMBOLS, gone])
    assert inductor_adapter.check_symbols() == ["torch._inductor.ir.NotThere"]


PRIVATE_TORCH = re.compile(r"\btorch(?:\.[a-z]\w*)*\._[a-z]\w*")


def private_names(text):
    return [name for name in PRIVATE_TORCH.findall(text) if not name.startswith("torch.ops.")]


def test_no_other_module_of_gaia_names_private_torch():
    assert private_names("from torch._inductor import ir; torch.utils._pytree.x; torch.ops.aten._foo") == [
        "torch._inductor",
        "torch.utils._pytree",
    ]
    root = resources.files("ytk_gaia")
    files = [
        f for folder in ("generator", "generator/rewrites", "evaluator", ".") for f in root.joinpath(folder).iterdir()
    ]
    sources = [f for f in files if f.name.endswith(".py") and f.name != "inductor_adapter.py"]
    assert len(sources) > 20
    assert {f.name: private_names(f.read_text()) for f in sources if private_names(f.read_text())} == {}


def check_kernels(region, kernels, expected, tmp_path):
    for library in compile_kernels(kernels, tmp_path):
        got = outputs_like(expected)
        assert library.launch([t.contiguous() for t in region.examples], got) == 0
        assert_matches(got, expected)


def run_torch(module, args):
    with torch.no_grad():
        return torch.utils._pytree.tree_leaves(module.eval()(*args))


@pytest.mark.parametrize("name", REGIONS)
def test_generated_kernel_matches_torch(name, tmp_path):
    torch.manual_seed(7)
    module, args = REGIONS[name]()
    region = bound(module, args)
    # Lowering costs a second each: recomputation is tried where it changes most.
    plans = ("base", "gather", "recompute") if name in RECOMPUTED else ("base", "gather")
    check_kernels(region, kernels_of(region, plans), run_torch(module, args), tmp_path)


@pytest.mark.parametrize("name", ["layernorm_gelu", "conv_transposed", "sort", "several_outputs"])
def test_every_schedule_gives_the_same_answer(name, tmp_path):
    torch.manual_seed(8)
    module, args = REGIONS[name]()
    region = bound(module, args)
    kernels = kernels_of(region, ("base",), (*SCHEDULES, Schedule(1, Vector.SCALAR)))
    check_kernels(region, kernels, run_torch(module, args), tmp_path)


SPLIT = {
    "conv_depthwise_relu": lambda: (
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU()),
        (r(1, 16, 15, 21),),
    ),
    "conv_depthwise_stride": lambda: (nn.Conv2d(6, 12, 5, padding=2, stride=2, groups=6), (r(2, 6, 13, 38),)),
    "conv_depthwise_dilated": lambda: (
        nn.Conv2d(4, 4, 3, padding=(2, 4), dilation=(1, 4), groups=4, bias=False),
        (r(1, 4, 9, 30),),
    ),
    "maxpool": lambda: (nn.MaxPool2d(3, 2, 1), (r(1, 4, 14, 40),)),
    "fold": lambda: (nn.Fold((14, 24), 3, padding=1), (r(2, 4 * 9, 14 * 24),)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_loops_split_where_masks_hold_give_the_same_answer(name, tmp_path):
    torch.manual_seed(12)
    module, args = SPLIT[name]()
    region = bound(module, args)
    split = next(s for s in SCHEDULES if s.split and not s.fuse)
    kernels = kernels_of(region, ("base", "taps", "gather"), (split,))
    assert any(re.search(r"constexpr int64_t i\d = 0;", k.source) for k in kernels)
    check_kernels(region, kernels, run_torch(module, args), tmp_path)


def test_large_loops_run_in_parallel_and_agree_with_one_thread(tmp_path):
    torch.manual_seed(9)
    module, args = Call(lambda x, w: (torch.softmax(x, -1) @ w, x.sort(-1)[0])), (r(200, 150), r(150, 90))
    region = bound(module, args)
    kernels = kernels_of(region, ("base",), (SCHEDULES[0], SCHEDULES[1]))
    assert all("#pragma omp parallel for" in k.source for k in kernels)
    for library in compile_kernels(kernels, tmp_path):
        results = []
        for threads in (1, 2, 3):
            got = outputs_like(run_torch(module, args))
            assert library.launch(args, got, threads=threads) == 0
            results.append(got)
        assert_matches(results[0], run_torch(module, args))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_fold_is_offered_as_scatter_and_as_gather():
    region = bound(*REGIONS["fold"]())
    arch = ArchSpec.parse(ARCH)
    kernels, refusals = strategies.generate_candidates(region, ["loops", "rewrites"], arch, 64)
    assert refusals == []
    by_plan = {k.plan.name: k for k in kernels}
    assert set(by_plan) == {"base", "gather"}  # "recompute" gives the same text as "base" here
    assert by_plan["gather"].kernel.nests < by_plan["base"].kernel.nests
    assert len({k.id for k in kernels}) == len(kernels)
    limited, _ = strategies.generate_candidates(region, ["loops", "rewrites"], arch, 2)
    assert {k.plan.name for k in limited} == {"base", "gather"}


def test_the_vector_dialect_replaces_libm_and_stays_right(tmp_path):
    torch.manual_seed(11)
    special = torch.tensor(
        [0.0, -0.0, 1e-30, 88.7, 89.5, -87.5, -104.5, 1e30, float("inf"), float("-inf"), float("nan")]
    )
    functions = (torch.exp, torch.tanh, torch.erf, torch.sigmoid)
    module, args = (
        Call(lambda x, y: (*(f(x) for f in functions), torch.exp(y))),
        (
            torch.cat([special, torch.randn(3000) * 3, torch.randn(3000) * 0.1]),
            torch.randn(5).double(),
        ),
    )
    region = bound(module, args)
    plain, vector = strategies.dialects(ArchSpec.parse(ARCH))
    kernel = vector.write(one_kernel(region))
    assert "ytk::op_exp(" not in kernel.source
    assert plain.write(kernel) is kernel
    (library,) = compile_kernels([kernel], tmp_path)
    expected = run_torch(Call(module.function), tuple(a.double() for a in args))
    got = outputs_like(run_torch(module, args))
    assert library.launch(args, got) == 0
    for g, e, limit in zip(got[:4], expected, (2.5e-7, 2.5e-7, 5e-7, 2.5e-7), strict=False):
        narrow = e.float()
        finite = narrow.isfinite() & (narrow.abs() > 1e-37)
        assert torch.equal(g[~narrow.isfinite()].nan_to_num(7.0), narrow[~narrow.isfinite()].nan_to_num(7.0))
        assert ((g.double() - e).abs() / e.abs())[finite].max() < limit
    assert torch.equal(got[4], torch.exp(args[1])) or torch.allclose(got[4], torch.exp(args[1]), rtol=1e-15)


def one_kernel(region):
    return emit(lower(region.program, LoweringPlan("base", "loops")), region.border, SCHEDULES[0])


def test_the_launcher_checks_its_arguments(tmp_path):
    module, args = Call(lambda x, y: (x @ y).softmax(-1)), (r(4, 6), r(6, 5))
    (library,) = compile_kernels([one_kernel(bound(module, args))], tmp_path)
    out = [torch.zeros(4, 5)]
    assert library.kernel.fixed_workspace_bytes > 0
    assert library.launch(args, out) == 0
    assert library.launch(args[:1], out) == 1
    assert library.launch(args, [*out, out[0]]) == 1
    assert library.launch([args[0].double(), args[1]], out) == 2
    assert library.launch([args[0], args[1].reshape(5, 6)], out) == 3
    assert library.launch([args[0].reshape(4, 6, 1), args[1]], out) == 3
    assert library.launch(args, [torch.zeros(5, 4)]) == 3
    assert library.launch(args, out, workspace_bytes=library.kernel.fixed_workspace_bytes - 1) == 6
    assert library.launch(args, out, size=8) == 8


def test_an_index_out_of_range_stays_inside_the_tensor(tmp_path):
    module, args = Call(F.embedding), (torch.tensor([0, 3]), r(4, 2))
    (library,) = compile_kernels([one_kernel(bound(module, args))], tmp_path)
    out = [torch.zeros(2, 2)]
    hostile = torch.tensor([10**12, -(10**12)])
    # Clamped, since a kernel cannot raise: it must not read elsewhere.
    assert library.launch([hostile, args[1]], out) == 0
    assert torch.equal(out[0], torch.stack([args[1][3], args[1][0]]))


def test_weights_are_inputs_where_the_region_spec_says_so_and_baked_elsewhere(tmp_path):
    torch.manual_seed(10)
    module, args = nn.Linear(6, 4), (r(3, 6),)
    program = export(module, args)
    derived = region_input.derive_spec(program, "linear")
    assert [t.role.value for t in derived.inputs] == ["parameter", "parameter", "activation"]
    only_activation = msgspec.structs.replace(derived, inputs=derived.inputs[2:])
    region = region_input.bind(program, only_activation)
    assert len(region.border.baked) == 2
    (library,) = compile_kernels([one_kernel(region)], tmp_path)
    expected = run_torch(module, args)
    got = outputs_like(expected)
    assert library.launch(args, got) == 0
    assert_matches(got, expected)


def test_a_region_spec_that_does_not_fit_is_refused():
    program = export(nn.Linear(6, 4), (r(3, 6),))
    derived = region_input.derive_spec(program, "linear")
    wrong_shape = msgspec.structs.replace(derived.inputs[2], shape=(3, 7))
    with pytest.raises(FormatError, match="input 2"):
        region_input.bind(program, msgspec.structs.replace(derived, inputs=(*derived.inputs[:2], wrong_shape)))
    with pytest.raises(FormatError, match="outputs"):
        region_input.bind(program, msgspec.structs.replace(derived, outputs=derived.outputs * 2))
    dynamic = msgspec.structs.replace(derived.inputs[2], dynamic_axes=(0,))
    with pytest.raises(UserError, match="dynamic"):
        region_input.bind(program, msgspec.structs.replace(derived, inputs=(*derived.inputs[:2], dynamic)))


@pytest.mark.parametrize(
    ("function", "args", "word"),
    [
        (torch.linalg.svdvals, lambda: (r(9, 9),), "linalg"),
        (torch.linalg.matrix_exp, lambda: (r(3, 3),), "matrix_exp"),
        (lambda x: torch.fft.rfft(x).abs(), lambda: (r(4, 509),), "prime length 509"),
    ],
)
def test_a_region_without_a_kernel_form_names_its_operators(function, args, word):
    region = bound(Call(function), args())
    with pytest.raises(UserError, match=word) as caught:
        strategies.generate_candidates(region, ["loops", "rewrites"], ArchSpec.parse(ARCH), 4)
    assert caught.value.code == "no_strategy"
    assert caught.value.hint


def test_a_region_that_writes_to_its_state_is_refused():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    region = bound(Counter(), (r(3),))
    with pytest.raises(UserError, match="a write to 'count'"):
        strategies.generate_candidates(region, ["loops"], ArchSpec.parse(ARCH), 4)
