"""The parent's side of the probe: start it in the sandbox, read its answer as hostile input."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import msgspec
from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import AttributeType, PluginMeta
from ytk_core.sandbox import SandboxMode

from ytk_forge.confined import run_confined
from ytk_forge.render import input_axes
from ytk_forge.toolchain import Probe

PROBE_LIMIT_S = 30.0
MAX_ANSWER_BYTES = 1024 * 1024
AttributeValue = list[int] | list[float] | str
_CHILD = Path(__file__).with_name("child.py")


class VariantView(msgspec.Struct, frozen=True):
    """One variant as the library declares it: (dtype, format) numbers per tensor."""

    id: str | None
    inputs: list[tuple[int, int]]
    outputs: list[tuple[int, int]]


class TableView(msgspec.Struct, frozen=True):
    """A library's table as it was read in the probe."""

    size: int
    abi_version: int
    namespace: str | None
    name: str | None
    version: str | None
    inputs: int
    outputs: int
    variants: list[VariantView]
    attributes: list[tuple[str | None, int, int]]
    launch: bool
    shape: bool
    workspace: bool
    meta_digest: str | None


class ShapeCase(msgspec.Struct, frozen=True):
    """One question to the shape function; ``want`` is None where the meta's expressions refuse these dims."""

    variant: int
    inputs: list[list[int]]
    want: list[list[int]] | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe found; ``table`` is None where the library did not load, and ``problem`` says why."""

    table: TableView | None = None
    shapes: list[tuple[int, list[list[int]]]] = []
    problem: str = ""
    cases: list[ShapeCase] = []


def shape_cases(meta: PluginMeta) -> list[ShapeCase]:
    """Give dims to ask the shape function for, per variant: typical ones, other ones, and all open dims unknown."""
    cases = []
    for variant in range(len(meta.variants)):
        for pick in ("typical", "least", "unknown"):
            dims = [[_extent(meta, i, d, pick) for d in range(decl.rank)] for i, decl in enumerate(meta.inputs)]
            want: list[list[int]] | None
            try:
                want = [[shape_expr.evaluate(text, dims) for text in output.shape] for output in meta.outputs]
            except UserError:
                want = None
            cases.append(ShapeCase(variant, dims, want))
    return cases


def _extent(meta: PluginMeta, index: int, axis: int, pick: str) -> int:
    allowed = input_axes(meta, index)[axis]
    if allowed.min == allowed.max:
        return allowed.min
    if pick == "unknown":
        return -1
    opt = next((e.opt for e in meta.extents if (e.input, e.axis) == (index, axis)), None)
    wish = (opt or 6) if pick == "typical" else max(allowed.min, 1)
    # The next extent that the declared divisibility accepts, within the range.
    extent = -(-max(wish, allowed.min) // allowed.multiple) * allowed.multiple
    return (
        extent if allowed.max is None or extent <= allowed.max else allowed.max // allowed.multiple * allowed.multiple
    )


def run_probe(library: Path, meta: PluginMeta, probe: Probe, *, mode: SandboxMode) -> Answer:
    """Load a library in a sandboxed process and give what its table says.

    Raises:
        BoardError: No sandbox works and ``mode`` is ``required``.
    """
    cases = shape_cases(meta)
    with tempfile.TemporaryDirectory(prefix="ytk-probe-") as directory:
        workdir = Path(directory)
        inside = workdir / "plugin.so"
        inside.write_bytes(library.read_bytes())
        request = {
            "library": str(inside),
            "preload": probe.libraries,
            "outputs": len(meta.outputs),
            "attributes": _attributes(meta),
            "cases": msgspec.to_builtins(cases),
        }
        (workdir / "request.json").write_text(json.dumps(request), encoding="utf-8")
        program = [*probe.emulator, sys.executable, "-I", "-S", str(_CHILD)]
        done = run_confined(
            [*program, str(workdir / "request.json"), str(workdir / "answer.json")],
            workdir,
            mode=mode,
            wall_limit_s=PROBE_LIMIT_S,
            read_only=[_CHILD.parent, *(Path(path) for path in probe.libraries)],
        )
        if done.timed_out:
            return Answer(problem=f"did not return within {PROBE_LIMIT_S:g} s")
        answer = _read_answer(workdir / "answer.json")
    if answer is None:
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        last = done.output.strip().splitlines()[-1:] or [""]
        return Answer(problem=f"the loading process ended with {ended} and no answer {last[0][:200]}".rstrip())
    return msgspec.structs.replace(answer, cases=cases)


def _read_answer(path: Path) -> Answer | None:
    """Read the answer, if it is one: a regular file of sane size with the right fields."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_ANSWER_BYTES:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _attributes(meta: PluginMeta) -> dict[str, AttributeValue]:
    """Give every required attribute a value: the baked one, or an empty one of its type."""
    unset: dict[AttributeType, AttributeValue] = {
        AttributeType.INTS: [0],
        AttributeType.FLOATS: [0.0],
        AttributeType.STRING: "",
    }
    values: dict[str, AttributeValue] = {}
    for decl in meta.attributes:
        if decl.value is None:
            if decl.required:
                values[decl.name] = unset[decl.type]
        elif isinstance(decl.value, str) or decl.type is AttributeType.INTS:
            values[decl.name] = decl.value
        else:
            values[decl.name] = [float(item) for item in decl.value]
    return values
