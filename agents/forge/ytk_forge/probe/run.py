"""The parent's side of the probe: start it in the sandbox, read its answer as hostile input.

Two probe programs give the same answers: ``child.py`` in this interpreter, and ``native/probe.cpp``, compiled by the
toolchain's own compiler, for libraries of another machine (run by its emulator).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ytk_core.abi import CTYPES_DIR, include_dir
from ytk_core.confined import run_confined
from ytk_core.digests import digest_bytes
from ytk_core.errors import ToolkitError, UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import AttributeType, PluginMeta
from ytk_core.sandbox import SandboxMode
from ytk_forge.device.driver_stub import SONAME, driver_stub
from ytk_forge.render import ATTRIBUTE_NUMBER, input_axes
from ytk_forge.tool_cache import kept
from ytk_forge.toolchain import Compiler, HostCode, Toolchain
from ytk_forge.trt_headers import DECLARED_DIR, HEADER

PROBE_LIMIT_S = 30.0
MAX_ANSWER_BYTES = 1024 * 1024
AttributeValue = list[int] | list[float] | str
_CHILD = Path(__file__).with_name("child.py")
_NATIVE = Path(__file__).parent / "native"


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


class CreatorView(msgspec.Struct, frozen=True):
    """One plugin creator as TensorRT would find it: its fields are (name, type number)."""

    interface: str
    namespace: str | None = None
    name: str | None = None
    version: str | None = None
    fields: list[tuple[str | None, int]] = []
    created: bool = False
    """Whether it made a plugin of the contract's attributes."""


class ShapeCase(msgspec.Struct, frozen=True):
    """One question to the shape function; ``want`` is None where the meta's expressions refuse these dims."""

    variant: int
    inputs: list[list[int]]
    want: list[list[int]] | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe found; ``table`` is None where the library did not load, and ``problem`` says why."""

    table: TableView | None = None
    shapes: list[tuple[int, list[list[int]]]] = []
    creators: list[CreatorView] = []
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


def run_probe(
    library: Path,
    meta: PluginMeta,
    toolchain: Toolchain,
    compiler: Compiler,
    *,
    mode: SandboxMode,
    native: bool = False,
    cache_dir: Path | None = None,
) -> Answer:
    """Load a library in a sandboxed process and give what its table says.

    Args:
        library: For the toolchain's machine.
        meta: Decides the questions to its shape function.
        toolchain: How it was built; its emulator runs the probe where its machine is not this one.
        compiler: Compiles the native probe program.
        mode: "optional" loads it without a sandbox where none works.
        native: Use the native probe program also where Python could load the library.
        cache_dir: A build cache's directory, which keeps the native probe program.

    Raises:
        BoardError: No sandbox works and ``mode`` is ``required``.
        ToolkitError: The native probe program does not compile.
    """
    cases = shape_cases(meta)
    foreign = toolchain.is_foreign()
    libraries = toolchain.probe.libraries
    with tempfile.TemporaryDirectory(prefix="ytk-probe-") as directory:
        workdir = Path(directory)
        inside, request, answer_file = (workdir / name for name in ("plugin.so", "request", "answer.json"))
        inside.write_bytes(library.read_bytes())
        if toolchain.device is not None:
            # The driver is the board's: its stand-in satisfies the loader, and no kernel is launched here.
            (workdir / SONAME).write_bytes(driver_stub(toolchain.host.sysroot, compiler, mode))
            libraries = [str(workdir / SONAME), *libraries]
        if foreign or native or toolchain.tensorrt is not None:
            request.write_text(_lines(inside, libraries, meta, cases, toolchain), encoding="ascii")
            (workdir / "probe").write_bytes(_native_probe(toolchain, compiler, mode, cache_dir))
            (workdir / "probe").chmod(0o755)
            program = [*(toolchain.probe.emulator if foreign else ()), str(workdir / "probe")]
        else:
            asked = {
                "library": str(inside),
                "preload": libraries,
                "outputs": len(meta.outputs),
                "attributes": _attributes(meta),
                "cases": msgspec.to_builtins(cases),
            }
            request.write_text(json.dumps(asked), encoding="utf-8")
            program = [sys.executable, "-I", "-S", str(_CHILD), str(CTYPES_DIR)]
        done = run_confined(
            [*program, str(request), str(answer_file)],
            workdir,
            mode=mode,
            wall_limit_s=PROBE_LIMIT_S,
            read_only=[_CHILD.parent, CTYPES_DIR, *(Path(path) for path in toolchain.probe.libraries)],
        )
        if done.timed_out:
            return Answer(problem=f"did not return within {PROBE_LIMIT_S:g} s")
        answer = _read_answer(answer_file)
    if answer is None:
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        last = done.output.strip().splitlines()[-1:] or [""]
        return Answer(problem=f"the loading process ended with {ended} and no answer {last[0][:200]}".rstrip())
    return msgspec.structs.replace(answer, cases=cases)


def _native_probe(toolchain: Toolchain, compiler: Compiler, mode: SandboxMode, cache_dir: Path | None) -> bytes:
    """Give the native probe program for a toolchain's machine."""
    sources = {
        path.name: path.read_bytes()
        for path in (_NATIVE / "probe.cpp", DECLARED_DIR / HEADER, include_dir() / "ytk_kernel.h")
    }
    parts = {
        "program": "probe",
        "sources": {name: digest_bytes(text) for name, text in sources.items()},
        "compiler": [compiler.path, compiler.banner, compiler.machine],
        "sysroot": toolchain.host.sysroot,
    }
    return kept(cache_dir, parts, lambda: _compile_probe(sources, toolchain.host, compiler, mode))


def _compile_probe(sources: dict[str, bytes], host: HostCode, compiler: Compiler, mode: SandboxMode) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ytk-probe-") as directory:
        workdir = Path(directory)
        for name, text in sources.items():
            (workdir / name).write_bytes(text)
        flags = [f"--sysroot={host.sysroot}"] if host.sysroot else []
        # -ldl: before glibc 2.34 dlopen has a library of its own.
        command = [compiler.path, *flags, "-std=c++17", "-O0", "-I.", "probe.cpp", "-o", "probe", "-ldl"]
        read_only = [Path(host.sysroot)] if host.sysroot else []
        done = run_confined(command, workdir, mode=mode, wall_limit_s=PROBE_LIMIT_S, read_only=read_only)
        if done.returncode:
            first = (done.output.strip().splitlines() or ["no message"])[0]
            msg = f"the probe program does not compile with {compiler.banner}: {first}"
            raise ToolkitError(msg, code="probe_does_not_compile", hint=f"Check the toolchain: {host.install}.")
        return (workdir / "probe").read_bytes()


def _lines(
    library: Path, preload: Sequence[str], meta: PluginMeta, cases: Sequence[ShapeCase], toolchain: Toolchain
) -> str:
    """Give the request of the native probe program: lines of words, strings in hex."""
    lines = [
        f"library {_hex(str(library))}",
        *(f"preload {_hex(path)}" for path in preload),
        f"outputs {len(meta.outputs)}",
    ]
    if toolchain.tensorrt is not None:
        lines.append(f"tensorrt {toolchain.tensorrt.major}")
    for name, value in _attributes(meta).items():
        if isinstance(value, str):
            lines.append(f"attribute {_hex(name)} {ATTRIBUTE_NUMBER[AttributeType.STRING]} 1 {_hex(value)}")
            continue
        kind = AttributeType.FLOATS if any(isinstance(item, float) for item in value) else AttributeType.INTS
        words = " ".join(item.hex() if isinstance(item, float) else str(item) for item in value)
        lines.append(f"attribute {_hex(name)} {ATTRIBUTE_NUMBER[kind]} {len(value)} {words}")
    for case in cases:
        dims = " ".join(" ".join(map(str, (len(extents), *extents))) for extents in case.inputs)
        lines.append(f"case {case.variant} {len(case.inputs)} {dims}")
    return "\n".join(lines) + "\n"


def _hex(text: str) -> str:
    return "x" + text.encode().hex()


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
