"""On a real GPU: generated kernels are compiled for it, judged and timed on it; wrong ones are found. Skipped where there is none."""

from __future__ import annotations

import json
import platform
import statistics
from pathlib import Path

import msgspec
import pytest

from ytk_core.archspec import ArchSpec
from ytk_gaia.evaluator import cuda_judge
from ytk_gaia.evaluator.cuda_device import find_devices, gpu_state
from ytk_gaia.evaluator.options import JudgeOptions
from ytk_gaia.evaluator.session import Limits
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import read_variant_tasks

from fakes import cuda_kernels

DEVICES, REASON = find_devices()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not DEVICES, reason=REASON or "no CUDA device")]
OPTIONS = JudgeOptions(budget_s=600, mode="optional", limits=Limits(start_s=120, call_s=60))
FAULTS = [
    f for f in cuda_kernels.FAULTS if f.verdict in {Verdict.WRONG_VALUE, Verdict.MUTATED_INPUT, Verdict.COMPILE_ERROR}
]


@pytest.fixture(scope="module")
def device():
    return DEVICES[0]


@pytest.fixture(scope="module")
def arch(device):
    """An arch spec of this machine's GPU with an NVRTC that we have."""
    cpu = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    cuda = "130" if device.driver_cuda[0] >= 13 else "118"
    return ArchSpec.parse(f"{cpu}-sm{device.sm}-linux-cu{cuda}-trt1014")


def test_the_device_says_what_the_evaluator_needs(device):
    assert device.sm >= 50
    assert device.l2_bytes > 0
    assert device.bandwidth > 1e9
    state = gpu_state(device)
    assert state.temperature_c is None or 0 < state.temperature_c < 120


def test_a_right_kernel_is_timed_and_wrong_ones_are_found(device, arch, tmp_path):
    candidates = {f.name: cuda_kernels.faulty(f) for f in FAULTS} | {"right": cuda_kernels.right()}
    found = cuda_judge.evaluate({0: cuda_kernels.make_task()}, candidates, arch, device, tmp_path, OPTIONS)
    results = {c.id: c for c in found.candidates}
    assert results["right"].verdict is Verdict.PASSED, (results["right"].reason, results["right"].log)
    assert results["right"].median_ms > 0
    for fault in FAULTS:
        assert results[fault.name].verdict is fault.verdict, (fault.name, results[fault.name])


@pytest.mark.parametrize(
    "name",
    [
        "layer_norm_gelu",
        "softmax_channels",
        "long_rows",
        "scan",
        "total",
        "transpose",
        "fold",
        "scatter",
        "sort",
        "matmul",
        "linear",
        "odd_batches",
        "attention",
        "causal_attention",
    ],
)
def test_generated_kernels_are_right_and_timed(name, device, arch, tmp_path):
    """Every variant of every candidate, against float64; the report has times, conditions and the GPU's state."""
    torch = pytest.importorskip("torch")
    from ytk_gaia.generator.run import generate

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(384)

        def forward(self, x):
            return torch.nn.functional.gelu(self.norm(x))

    class Call(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, *args):
            return self.function(*args)

    torch.manual_seed(0)
    regions = {
        "layer_norm_gelu": (Norm(), (torch.randn(196, 384),)),
        "softmax_channels": (Call(lambda x: torch.softmax(x, 1)), (torch.randn(2, 64, 56, 56),)),
        "long_rows": (Call(lambda x: torch.log_softmax(x, -1)), (torch.randn(64, 50257),)),
        "scan": (Call(lambda x: torch.cumsum(x * 0.5, -1).relu()), (torch.randn(64, 5000),)),
        "total": (Call(lambda x: (x * x + 1).sum()), (torch.randn(8, 64, 56, 56),)),
        "transpose": (Call(lambda x: (x * 2).permute(0, 2, 1).contiguous()), (torch.randn(8, 1000, 384),)),
        "fold": (Call(lambda x: torch.nn.functional.fold(x, (56, 56), 3, padding=1)), (torch.randn(1, 576, 3136),)),
        "scatter": (
            Call(lambda x, i: torch.zeros(512, 64).index_add(0, i, x)),
            (torch.randn(2048, 64), torch.randint(0, 512, (2048,))),
        ),
        "sort": (Call(lambda x: torch.sort(x, dim=-1)), (torch.randn(64, 1000),)),
        "matmul": (Call(torch.matmul), (torch.randn(128, 256), torch.randn(256, 192))),
        # Templates: tiles with an epilogue, edges and strides that no vector fits, attention with and without a mask.
        "linear": (
            Call(lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))),
            (torch.randn(196, 384), torch.randn(1536, 384) / 20, torch.randn(1536)),
        ),
        "odd_batches": (
            Call(lambda a, b, c: (a @ b.transpose(-1, -2)) * 0.5 + c),
            (torch.randn(3, 67, 45), torch.randn(3, 83, 45), torch.randn(83)),
        ),
        "attention": (
            Call(lambda q, k, v, m: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)),
            (*(torch.randn(2, 3, n, 40) for n in (77, 130, 130)), torch.randn(77, 130)),
        ),
        "causal_attention": (
            Call(lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)),
            tuple(torch.randn(1, 4, 200, 64) for _ in range(3)),
        ),
    }
    module, inputs = regions[name]
    program = torch.export.export(module.eval(), inputs)
    torch.export.save(program, tmp_path / "region.pt2")
    config = {"deployment_target": "tensorrt"}
    generate({"region": "region.pt2", "name": name, "config": config, "arch_spec": str(arch)}, tmp_path)
    out = tmp_path / "out"
    candidates = {path.stem: path.read_text() for path in sorted((out / "candidates").glob("*.py"))}
    found = cuda_judge.evaluate(read_variant_tasks(out), candidates, arch, device, tmp_path / "judge", OPTIONS)
    assert {c.verdict for c in found.candidates} == {Verdict.PASSED}, [
        (c.id, c.reason, c.log) for c in found.candidates
    ]
    times = {c.id: statistics.median(c.times_ms) for c in found.candidates}
    assert all(c.cold_ms is None or c.cold_ms >= 0 for c in found.candidates)
    record = Path("gpu-report.json")
    known = json.loads(record.read_text()) if record.is_file() else {}
    known[name] = {"median_ms": times, "roofline_ms": found.roofline_ms, "gpu": msgspec.to_builtins(found.gpu)}
    record.write_text(json.dumps(known, indent=1))
