"""Generated kernels against ONNX Runtime and OpenVINO, region by region: ``python -m benchmarks.kernels [NAME ...]``.

Each region is generated and chosen by measurement as a user would; then the winner and each peer get a process without torch, two
threads, float32, and take turns in short bursts. The ratio is ours to the best peer's in the same round, so a machine that changes
its pace changes it for all. Losses are printed like wins. No peer: neither can run the region.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROUNDS, BURST = 15, 20
MAX_LOAD = 3.0

TARGETS = {
    "dw3": 0.8,
    "dw5": 0.95,
    "fold": 0.5,
    "layernorm_gelu": 0.5,
    "upsample_add": 0.35,
    "linear_attention": 0.4,
    "grid_sample_5d": 1.0,
    "scatter_max": 1.0,
    "rope": 1.0,
    "window_partition": 1.0,
}


# ---- the regions (runs with torch, in a process of its own) ----------------------------------------------------------


def _regions() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    import torch
    import torch.nn.functional as F  # noqa: N812 -- its usual name
    from torch import nn

    def r(*shape: int) -> Any:
        return torch.randn(*shape)

    class Call(nn.Module):  # type: ignore[misc]  # torch carries no types
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, *args: Any) -> Any:
            return self.function(*args)

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k = F.relu(q), F.relu(k)
        v = F.pad(v, (0, 1), value=1.0)
        out = q @ (k.transpose(-1, -2) @ v)
        return out[..., :-1] / (out[..., -1:] + 1e-15)

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def partition(x: Any) -> Any:
        n, h, w, c = x.shape
        return x.view(n, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)

    def voxels(points: Any, index: Any) -> Any:
        grid = torch.full((4096, points.shape[1]), float("-inf"))
        return grid.scatter_reduce(0, index[:, None].expand_as(points), points, "amax")

    class NormGelu(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(384)

        def forward(self, x: Any) -> Any:
            return F.gelu(self.norm(x))

    return {
        "dw3": (nn.Conv2d(256, 256, 3, padding=1, groups=256), (r(1, 256, 56, 56),)),
        "dw5": (nn.Conv2d(256, 256, 5, padding=2, groups=256), (r(1, 256, 56, 56),)),
        "fold": (nn.Fold((56, 56), 3, padding=1), (r(1, 64 * 9, 56 * 56),)),
        "layernorm_gelu": (NormGelu(), (r(196, 384),)),
        "upsample_add": (
            Call(lambda x, y: F.interpolate(x, scale_factor=2, mode="nearest") + y),
            (r(1, 64, 28, 28), r(1, 64, 56, 56)),
        ),
        "linear_attention": (Call(attention), (r(1, 16, 1024, 16), r(1, 16, 1024, 16), r(1, 16, 1024, 16))),
        "grid_sample_5d": (
            Call(lambda x, g: F.grid_sample(x, g, align_corners=False)),
            (r(1, 8, 16, 32, 32), torch.rand(1, 8, 32, 32, 3) * 2 - 1),
        ),
        "scatter_max": (Call(voxels), (r(20000, 16), torch.randint(0, 4096, (20000,)))),
        "rope": (Call(rope), (r(1, 12, 512, 64), r(512, 64), r(512, 64))),
        "window_partition": (Call(partition), (r(1, 56, 56, 96),)),
    }


def _prepare(name: str, directory: Path) -> None:
    """Write region, inputs and ONNX model of one entry."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    module, args = _regions()[name]
    module.eval()
    torch.export.save(torch.export.export(module, args), directory / "Region.pt2")
    program = torch.export.load(directory / "Region.pt2")
    weights = [*program.state_dict.values()]
    # The derived border has the weights first, as inputs of the node.
    arrays = [t.detach().numpy() for t in (*weights, *args)]
    np.savez(directory / "inputs.npz", allow_pickle=False, **{f"in{i}": a for i, a in enumerate(arrays)})
    np.savez(directory / "peer.npz", allow_pickle=False, **{f"in{i}": a.numpy() for i, a in enumerate(args)})
    with torch.no_grad():
        result = module(*args)
    np.savez(directory / "expected.npz", allow_pickle=False, out=result.numpy())
    try:
        torch.onnx.export(module, args, directory / "model.onnx", dynamo=True, opset_version=20, verbose=False)
    except Exception as err:  # noqa: BLE001 -- the exporter refuses it, so no peer can run it
        (directory / "refused.txt").write_text(str(err)[:500])


# ---- one contestant (a process without torch) ------------------------------------------------------------------------


def _kernel_call(directory: Path, threads: int) -> Any:
    import ctypes

    import numpy as np

    from ytk_core.abi.ctypes_abi import Context, Tensor
    from ytk_core.dtypes import ONNX_NUMBER, DType
    from ytk_core.formats.kernel_bundle import read_bundle

    meta = read_bundle(directory / "winner.py").meta
    library = ctypes.CDLL(str(directory / "kernel" / "kernel.so"))
    loaded = np.load(directory / "inputs.npz")

    def aligned(size: int) -> Any:
        raw = np.empty(size + 64, np.uint8)
        return raw[-raw.ctypes.data % 64 :][:size]

    def tensor(array: Any, dtype: DType) -> Any:
        dims = (ctypes.c_int64 * 8)(*array.shape)
        return Tensor(array.ctypes.data, ONNX_NUMBER[dtype], array.ndim, dims, 0, 0, 1.0, 0)

    held = []
    for index in range(len(meta.inputs)):
        source = np.ascontiguousarray(loaded[f"in{index}"])
        copy = aligned(source.nbytes).view(source.dtype).reshape(source.shape)
        copy[...] = source
        held.append(copy)
    variant = meta.variants[0]
    ins = (Tensor * len(held))(*(tensor(a, t.dtype) for a, t in zip(held, variant.inputs, strict=True)))
    shape = np.load(directory / "expected.npz")["out"].shape
    out = aligned(int(np.prod(shape)) * 4).view(np.float32).reshape(shape)
    outs = (Tensor * 1)(tensor(out, variant.outputs[0].dtype))
    context = Context(ctypes.sizeof(Context), 1, None, 0, 0, None, 0, None, threads, 0)
    library.ytk_gaia_workspace.restype = ctypes.c_int64
    room = library.ytk_gaia_workspace(ctypes.byref(context), ins, len(held), outs, 1)
    memory = aligned(max(64, room))
    context.workspace, context.workspace_bytes = memory.ctypes.data, room

    def call() -> Any:
        if library.ytk_gaia_entry(ctypes.byref(context), ins, len(held), outs, 1):
            raise RuntimeError("the kernel refused")
        return out

    call.kept = (held, memory)  # type: ignore[attr-defined]  # the kernel points into them
    return call


def _onnxruntime_call(directory: Path, threads: int) -> Any:
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(directory / "model.onnx", options, providers=["CPUExecutionProvider"])
    loaded = np.load(directory / "peer.npz")
    binding = session.io_binding()
    for index, given in enumerate(session.get_inputs()):
        binding.bind_ortvalue_input(given.name, ort.OrtValue.ortvalue_from_numpy(loaded[f"in{index}"]))
    binding.bind_output(session.get_outputs()[0].name)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding

    call.result = lambda: binding.copy_outputs_to_cpu()[0]  # type: ignore[attr-defined]
    return call


def _openvino_call(directory: Path, threads: int) -> Any:
    import numpy as np
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    request = core.compile_model(str(directory / "model.onnx"), "CPU", settings).create_infer_request()
    loaded = np.load(directory / "peer.npz")
    for index in range(len(loaded.files)):
        request.set_input_tensor(index, ov.Tensor(loaded[f"in{index}"]))

    def call() -> Any:
        request.infer()
        return request

    call.result = lambda: request.get_output_tensor(0).data  # type: ignore[attr-defined]
    return call


CONTESTANTS = {"kernel": _kernel_call, "onnxruntime": _onnxruntime_call, "openvino": _openvino_call}


def _contestant(kind: str, directory: Path, threads: int) -> None:
    """Answer ``ready <error>`` and then, for each line on standard input, the median nanoseconds of a burst."""
    import numpy as np

    call = CONTESTANTS[kind](directory, threads)
    for _ in range(5):
        found = call()
    got = np.asarray(call.result() if hasattr(call, "result") else found, np.float64)
    want = np.load(directory / "expected.npz")["out"].astype(np.float64)
    finite = np.isfinite(want)
    fine = got.shape == want.shape and np.array_equal(got[~finite], want[~finite])
    error = np.abs(got[finite] - want[finite]).max() / np.abs(want[finite]).max() if fine else float("inf")
    print("ready", error, flush=True)
    for _line in sys.stdin:
        times = []
        for _ in range(BURST):
            started = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - started)
        print(statistics.median(times), min(times), flush=True)


# ---- the comparison --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One region's result; ``None`` where a contestant cannot run it.

    Attributes:
        name: Key of :data:`TARGETS`.
        ms: Median over rounds of a burst's median.
        least_ms: Fastest single call: what is left where the machine is too busy for medians.
        best_peer: Of the medians.
        ratio: Median over rounds of ours to the best peer's.
        least_ratio: Ours to the best peer's fastest call.
        target: What the project wants ``ratio`` to be at most.
        notes: Who could not run it, and why.
        load: One-minute load average when timing began.
        winner: Candidate id.
    """

    name: str
    ms: dict[str, float | None]
    least_ms: dict[str, float]
    best_peer: str | None
    ratio: float | None
    least_ratio: float | None
    target: float
    notes: str
    load: float
    winner: str


class _Process:
    def __init__(self, kind: str, directory: Path, threads: int) -> None:
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
        argv = [sys.executable, "-m", "benchmarks.kernels", "--child", kind, "--dir", str(directory)]
        argv += ["--threads", str(threads)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
        self.error = float("inf")
        line = self._line()
        if line.startswith("ready "):
            self.error = float(line.split()[1])

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def burst(self) -> tuple[float, float]:
        """Give median and least nanoseconds of one burst."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        middle, least = map(float, self._line().split())
        return middle, least

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _generate(name: str, directory: Path, budget_s: float, threads: int) -> str:
    """Choose a kernel for the region as ``ytk kernelgen compile`` does, and compile it as Forge does."""
    from ytk_core.archspec import ArchSpec
    from ytk_core.formats.kernel_bundle import read_bundle
    from ytk_gaia.evaluator.build import build
    from ytk_gaia.library import generate_and_choose

    config = {"deployment_target": "cpu", "budget": budget_s, "threads": threads}
    report = generate_and_choose(
        directory / "Region.pt2", config, directory / "winner.py", directory / "report.json", log=lambda _text: None
    )
    (directory / "kernel").mkdir()
    built = build(
        read_bundle(directory / "winner.py"), ArchSpec.parse(report.arch_spec), directory / "kernel", "optional"
    )
    if built.library is None:
        msg = f"{name}: {built.log[:300]}"
        raise RuntimeError(msg)
    return report.winner or ""


def compare(name: str, directory: Path, budget_s: float, threads: int) -> Row:
    """Generate, then time side by side."""
    prepared = [sys.executable, "-m", "benchmarks.kernels", "--child", "prepare", "--dir", str(directory), name]
    subprocess.run(prepared, check=True, capture_output=True)
    notes, winner = [], ""
    try:
        winner = _generate(name, directory, budget_s, threads)
    except Exception as err:  # noqa: BLE001 -- no kernel is a result
        notes.append(f"no kernel: {str(err)[:120]}")
    processes = {}
    for kind in CONTESTANTS:
        if (kind == "kernel" and winner) or (kind != "kernel" and (directory / "model.onnx").is_file()):
            process = _Process(kind, directory, threads)
            if process.error < 1e-3:
                processes[kind] = process
            else:
                process.end()
                notes.append(f"{kind} {'is wrong' if process.error < float('inf') else 'does not run it'}")
    load = os.getloadavg()[0]
    times: dict[str, list[float]] = {kind: [] for kind in processes}
    least: dict[str, float] = {}
    for turn in range(ROUNDS):
        order = list(processes)
        for kind in order[turn % len(order) :] + order[: turn % len(order)] if order else []:
            middle, fastest = processes[kind].burst()
            times[kind].append(middle)
            least[kind] = min(least.get(kind, float("inf")), fastest / 1e6)
    for process in processes.values():
        process.end()
    medians = {k: statistics.median(v) / 1e6 for k, v in times.items()}
    peers = {k: v for k, v in medians.items() if k != "kernel"}
    best = min(peers, key=lambda k: peers[k]) if peers else None
    ratio = None
    if best and "kernel" in times:
        ratio = statistics.median(a / b for a, b in zip(times["kernel"], times[best], strict=True))
    others = [v for k, v in least.items() if k != "kernel"]
    return Row(
        name=name,
        ms={k: medians.get(k) for k in CONTESTANTS},
        least_ms=least,
        best_peer=best,
        ratio=ratio,
        least_ratio=least["kernel"] / min(others) if "kernel" in least and others else None,
        target=TARGETS[name],
        notes="; ".join(notes),
        load=load,
        winner=winner,
    )


def _print(rows: Sequence[Row]) -> None:
    heads = [
        "region",
        "kernel ms",
        "ORT ms",
        "OpenVINO ms",
        "ratio to best",
        "of fastest calls",
        "target",
        "load",
        "winner",
    ]
    click.echo(f"| {' | '.join([*heads, 'notes'])} |")
    click.echo("|---" * (len(heads) + 1) + "|")
    for row in rows:
        shown = [f"{v:.3f}" if v is not None else "-" for v in row.ms.values()]
        ratios = [f"{v:.2f}" if v is not None else "-" for v in (row.ratio, row.least_ratio)]
        cells = [row.name, *shown, *ratios, f"{row.target:g}", f"{row.load:.1f}", row.winner or "-", row.notes or "-"]
        click.echo(f"| {' | '.join(cells)} |")


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("names", nargs=-1)
@click.option("--budget", default=60.0, help="Seconds of search per region.")
@click.option("--threads", default=2)
@click.option("--wait", default=0.0, help="Seconds to wait for a load average below 3 before each region.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None)
@click.option("--child", default="", hidden=True)
@click.option("--dir", "directory", type=click.Path(path_type=Path), default=None, hidden=True)
def main(
    names: tuple[str, ...],
    budget: float,
    threads: int,
    wait: float,
    json_path: Path | None,
    child: str,
    directory: Path | None,
) -> None:
    """Compare the named regions, or all."""
    if child and directory is not None:
        if child == "prepare":
            _prepare(names[0], directory)
        else:
            _contestant(child, directory, threads)
        return
    rows = []
    for name in names or TARGETS:
        until = time.monotonic() + wait
        while os.getloadavg()[0] > MAX_LOAD and time.monotonic() < until:
            time.sleep(5)
        with tempfile.TemporaryDirectory(prefix="ytk-bench-") as folder:
            rows.append(compare(name, Path(folder), budget, threads))
        _print(rows[-1:])
        if json_path is not None:
            json_path.write_text(json.dumps([vars(r) for r in rows], indent=1))
    click.echo()
    _print(rows)
    if any(row.load > MAX_LOAD for row in rows):
        click.echo(f"The load average was above {MAX_LOAD:g}: times are not comparable with those of an idle machine.")


if __name__ == "__main__":
    main()
