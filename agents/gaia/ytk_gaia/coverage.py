"""How much of torch the generator covers: ``python -m ytk_gaia.coverage OUT.json``.

Every entry of torch's own operator database is taken with its first float32 sample, captured, generated as C++ (``--form cuda``: as CUDA
C++, which is compiled for sm_87 and run on the emulation), called through the launcher ABI, and compared with torch. Needs torch with its test database (``expecttest`` installed).
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from ytk_core.dtypes import ONNX_NUMBER, DType
from ytk_core.errors import FormatError, ToolkitError, UserError
from ytk_core.files import atomic_write
from ytk_gaia import coverage_child
from ytk_gaia.coverage_forms import Form, form
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator import region_input, strategies
from ytk_gaia.generator.border import EmittedKernel, KernelTensor
from ytk_gaia.generator.lowering import CannotLowerError, lower

SCHEMA_VERSION = 1
MATCH, WRONG, NO_KERNEL, CRASH, NOT_CAPTURED = "match", "wrong", "no kernel", "crash", "not captured"
_BATCH = 8
_ENTRY_LIMIT_S = 240
_RELATIVE = 1e-4
"""Of the output's largest magnitude: an algorithm's error passes, a wrong formula does not."""
# What they hold is whatever was in memory; the shape is all that there is to compare.
_FREE_SIGNS = re.compile(r"^(linalg\.)?(svd|eigh|eig)$")
_UNSPECIFIED = re.compile(r"empty|resize_")


@dataclass(frozen=True)
class Outcome:
    """What became of one entry. ``reason``: why there is no match; ``nests``: loop nests of the kernel."""

    entry: str
    status: str
    reason: str = ""
    error: float | None = None
    nests: int = 0


@dataclass
class _Pending:
    """A generated kernel that waits for its batch."""

    entry: str
    kernel: EmittedKernel
    inputs: list[tuple[KernelTensor, torch.Tensor]]
    outputs: list[tuple[KernelTensor, torch.Tensor]]
    calls: dict[str, Any] = field(default_factory=dict)


class _Call(torch.nn.Module):  # type: ignore[misc]  # torch carries no types
    """An entry's function of the tensors among its arguments alone."""

    def __init__(self, function: Any, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self._function, self._leaves, self._spec = function, leaves, spec

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Give the tensors among the results."""
        # Copies: an operator in place changes a value of its own, not an input of the region, which no kernel may write.
        given = iter([tensor.clone() for tensor in tensors])
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = inductor.tree_unflatten(leaves, self._spec)
        results = inductor.tree_leaves(self._function(*args, **kwargs))
        found = [r for r in results if isinstance(r, torch.Tensor)]
        # No engine has complex tensors: such a result is judged as pairs of reals, as a model would hand it on.
        found = [torch.view_as_real(r.resolve_conj()) if r.is_complex() else r for r in found]
        # An input given back as it is would be an alias, which export refuses to hand out.
        return [r.clone() if any(r is t for t in tensors) else r for r in found]


def entry_name(op: Any) -> str:
    """Give the unique name of an entry of the database."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def database() -> dict[str, Any]:
    """Give the entries that take float32 on a CPU, by name."""
    found = {}
    for op in inductor.operator_database():
        if torch.float32 in op.supported_dtypes("cpu"):
            found[entry_name(op)] = op
    return found


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def expired(_number: int, _frame: Any) -> None:
        msg = f"more than {seconds} s"
        raise TimeoutError(msg)

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _capture(op: Any) -> tuple[torch.export.ExportedProgram, list[torch.Tensor]]:
    """Give the program, and what torch computes for the entry's first sample."""
    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)))
    leaves, spec = inductor.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    function = op.op
    if _FREE_SIGNS.search(entry_name(op)):
        # Signs of singular vectors and eigenvectors are free: torch's own tests say what is left to compare.
        def function(*args: Any, **kwargs: Any) -> Any:
            return sample.output_process_fn_grad(op.op(*args, **kwargs))

    module = _Call(function, leaves, spec)
    inputs = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    # A plugin has at least one input: what creates tensors out of nothing gets one that it does not read.
    inputs = inputs or [torch.zeros(1)]
    program = torch.export.export(module.eval(), tuple(inputs))
    with torch.no_grad():
        expected = module(*[t.clone() for t in inputs])
    return program, expected


def _emit(region: region_input.Region, form: Form) -> EmittedKernel:
    """Give the kernel of the first plan that applies.

    Raises:
        CannotLowerError: None does.
    """
    operators = strategies.region_operators(region.program)
    missing: list[str] = []
    for strategy in strategies.REGISTRY.values():
        for plan in strategy.plans(operators):
            if plan.name == "recompute":
                continue  # the same operators as "base"
            try:
                return form.emit(lower(region.program, plan), region.border)
            except CannotLowerError as err:
                missing += [op for op in err.operators if op not in missing]
    raise CannotLowerError(missing)


def _first_line(err: BaseException) -> str:
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0] if lines else ''}"[:240]


def generate_entry(op: Any, form: Form) -> Outcome | _Pending:
    """Capture an entry and generate its kernel."""
    name = entry_name(op)
    try:
        with _time_limit(_ENTRY_LIMIT_S):
            program, expected = _capture(op)
    except Exception as err:  # noqa: BLE001 -- whatever torch raises, it cannot capture the entry
        return Outcome(name, NOT_CAPTURED, _first_line(err))
    try:
        with _time_limit(_ENTRY_LIMIT_S):
            region = region_input.bind(program, region_input.derive_spec(program, "region"))
            kernel = _emit(region, form)
    except (CannotLowerError, UserError, FormatError, TimeoutError) as err:
        return Outcome(name, NO_KERNEL, str(err)[:240])
    except Exception as err:  # noqa: BLE001 -- a bug of the generator is a result here, with its type
        return Outcome(name, NO_KERNEL, f"generator: {_first_line(err)}")
    given = [(t, e) for t, e in zip(region.border.inputs, region.examples, strict=True) if e is not None]
    if len(given) != len(region.border.inputs) or len(expected) != len(region.border.outputs):
        return Outcome(name, NO_KERNEL, "the capture does not say its inputs or outputs")
    return _Pending(name, kernel, given, list(zip(region.border.outputs, expected, strict=True)))


# ---- compiling and calling -------------------------------------------------------------------------------------------


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _lay_out(batch: Sequence[_Pending], directory: Path) -> bytearray:
    """Write manifest and data; outputs are poisoned, so that an element nobody writes shows."""
    data, calls = bytearray(), []
    for index, item in enumerate(batch):
        call: dict[str, Any] = {"index": index, "symbol": f"ytk_launch_{index}"}
        kernel = item.kernel
        call["workspace"] = kernel.fixed_workspace_bytes + kernel.per_thread_workspace_bytes
        for kind, tensors in (("inputs", item.inputs), ("outputs", item.outputs)):
            call[kind] = []
            for declared, tensor in tensors:
                raw = _bytes(tensor)
                facts = {"offset": len(data), "dtype": ONNX_NUMBER[declared.dtype], "dims": list(declared.shape)}
                call[kind].append(facts | {"size": len(raw)})
                data += raw if kind == "inputs" else b"\x7b" * len(raw)
                data += bytes(-len(data) % 64 + 64)
        item.calls = call
        calls.append(call)
    data += bytes(4096)
    (directory / "data").write_bytes(data)
    manifest = {"library": str(directory / "k.so"), "data": str(directory / "data"), "calls": calls}
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return data


def _compare(item: _Pending, data: bytes) -> Outcome:
    worst = 0.0
    for number, ((declared, expected), facts) in enumerate(zip(item.outputs, item.calls["outputs"], strict=True)):
        if tuple(expected.shape) != tuple(declared.shape):
            return Outcome(item.entry, WRONG, f"output {number} has the shape {tuple(declared.shape)}")
        if _UNSPECIFIED.search(item.entry):
            continue
        raw = np.frombuffer(data, np.uint8, facts["size"], facts["offset"])
        want = np.frombuffer(_bytes(expected), np.uint8)
        if declared.dtype not in {DType.FLOAT32, DType.FLOAT64}:
            if not np.array_equal(raw, want):
                return Outcome(
                    item.entry, WRONG, f"output {number} ({declared.dtype}) differs", nests=item.kernel.nests
                )
            continue
        kind = np.float32 if declared.dtype is DType.FLOAT32 else np.float64
        got, right = raw.view(kind).astype(np.float64), want.view(kind).astype(np.float64)
        finite = np.isfinite(right)
        with np.errstate(invalid="ignore"):
            same = np.where(np.isnan(right), np.isnan(got), got == right)
            error = np.where(finite, np.abs(got - right), 0.0)
        scale = max(1e-6, float(np.abs(right[finite]).max(initial=0.0)))
        relative = float(error.max(initial=0.0)) / scale
        # "not <=": a NaN where a number is expected fails.
        if not same[~finite].all() or not relative <= _RELATIVE:
            reason = f"output {number} is off by {relative:.2e} of its largest magnitude"
            return Outcome(item.entry, WRONG, reason, relative, item.kernel.nests)
        worst = max(worst, relative)
    return Outcome(item.entry, MATCH, "", worst, item.kernel.nests)


def run_batch(batch: Sequence[_Pending], form: Form, optimise: str) -> list[Outcome]:
    """Compile and call kernels; one that breaks its batch is tried alone."""
    if not batch:
        return []
    with tempfile.TemporaryDirectory(prefix="ytk-coverage-") as name:
        directory = Path(name)
        problem = form.compile([item.kernel.source for item in batch], directory, optimise)
        answered: dict[int, int] = {}
        if not problem:
            _lay_out(batch, directory)
            command = [sys.executable, coverage_child.__file__, str(directory / "manifest.json")]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
                lines, end = done.stdout.split("\n"), f"the process ended with {done.returncode}"
            except subprocess.TimeoutExpired:
                lines, end = [], "no answer within 120 s"
            answered = {int(index): int(status) for index, status in (line.split() for line in lines if line)}
            data = (directory / "data").read_bytes()
            if len(answered) == len(batch):
                return [
                    _compare(item, data) if answered[k] == 0 else Outcome(item.entry, CRASH, f"status {answered[k]}")
                    for k, item in enumerate(batch)
                ]
            problem = end
        if len(batch) == 1:
            return [Outcome(batch[0].entry, CRASH, f"{problem.splitlines()[0]}"[:240], nests=batch[0].kernel.nests)]
    return [outcome for item in batch for outcome in run_batch([item], form, optimise)]


# ---- the whole -------------------------------------------------------------------------------------------------------


def measure(
    names: Sequence[str], ops: dict[str, Any], form: Form, optimise: str = "-O1", deadline: float = float("inf")
) -> Iterator[Outcome]:
    """Give the outcome of each entry, in batches; stops at the deadline (``time.monotonic()``)."""
    waiting: list[_Pending] = []
    for name in names:
        if time.monotonic() > deadline:
            break
        found = generate_entry(ops[name], form)
        if isinstance(found, Outcome):
            yield found
            continue
        waiting.append(found)
        if len(waiting) == _BATCH:
            yield from run_batch(waiting, form, optimise)
            waiting = []
    yield from run_batch(waiting, form, optimise)


def summary(outcomes: Sequence[Outcome], available: int) -> dict[str, Any]:
    """Count outcomes; the share is of captured entries."""
    counts = Counter(o.status for o in outcomes)
    captured = sum(n for status, n in counts.items() if status != NOT_CAPTURED)
    return {
        "schema_version": SCHEMA_VERSION,
        "torch": str(torch.__version__),
        "available": available,
        "measured": len(outcomes),
        "captured": captured,
        "counts": dict(counts),
        "match_share": counts[MATCH] / captured if captured else None,
        "entries": [asdict(o) for o in sorted(outcomes, key=lambda o: o.entry)],
    }


def _earlier(path: Path, *, retry: bool) -> list[Outcome]:
    if not path.is_file():
        return []
    entries = json.loads(path.read_text(encoding="utf-8"))["entries"]
    kept = {MATCH, NOT_CAPTURED} if retry else {MATCH, WRONG, NO_KERNEL, CRASH, NOT_CAPTURED}
    return [Outcome(**e) for e in entries if e["status"] in kept]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--only", default="", help="Regular expression over entry names.")
@click.option("--every", default=1, help="Take every Nth entry of the shuffled order.")
@click.option("--budget", default=86400.0, help="Seconds after which no further entry is begun.")
@click.option("--retry", is_flag=True, help="Measure again what has no match in OUT; matches are kept.")
@click.option(
    "--form",
    "form_name",
    default="cpp",
    type=click.Choice(["cpp", "cuda"]),
    help="cuda: for sm_87, run on the emulation.",
)
@click.option("--optimise", default="-O1", help="Compiler level; -O1 halves the time of -O3.")
def main(out: Path, only: str, every: int, budget: float, retry: bool, optimise: str, form_name: str) -> None:
    """Measure, keeping what OUT already has."""
    warnings.simplefilter("ignore")
    missing = inductor.check_symbols()
    if missing:
        msg = f"torch {torch.__version__} lacks {', '.join(missing)}"
        raise ToolkitError(msg, code="torch_private_api", hint="Use the pinned torch.")
    ops, chosen = database(), form(form_name)
    outcomes = _earlier(out, retry=retry)
    done = {o.entry for o in outcomes}
    names = sorted(ops)
    # A fixed shuffle: what a budget cuts off is then no kind of its own, and a part estimates the whole.
    random.Random(0).shuffle(names)  # noqa: S311 -- no secret
    names = [n for n in names[::every] if re.search(only, n) and n not in done]
    for outcome in measure(names, ops, chosen, optimise, time.monotonic() + budget):
        outcomes.append(outcome)
        click.echo(f"{len(outcomes)} {outcome.entry}: {outcome.status} {outcome.reason}", err=True)
        with atomic_write(out) as file:
            file.write(json.dumps(summary(outcomes, len(ops)), indent=1).encode())
    found = summary(outcomes, len(ops))
    click.echo(json.dumps({k: v for k, v in found.items() if k != "entries"}))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
