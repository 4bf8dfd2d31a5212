"""The last word short of a GPU: a real TensorRT's plugin registry loads the library and finds the creator in it.

On this machine's own architecture through TensorRT's Python package; for another one through a small program that the toolchain's
compiler makes and its emulator runs, with the tensorrt-lean package of that architecture.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import msgspec

from ytk_core.confined import run_confined
from ytk_core.digests import digest_bytes
from ytk_core.errors import ToolkitError
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.sandbox import SandboxMode
from ytk_forge.device.driver_stub import SONAME, driver_stub
from ytk_forge.probe.compare import field_types
from ytk_forge.render import CUDA_TYPES_DIR
from ytk_forge.tool_cache import kept
from ytk_forge.toolchain import Compiler, Toolchain
from ytk_forge.trt_headers import real_headers

CHECK = "registry"
LIMIT_S = 60.0
_MAX_ANSWER_BYTES = 1024 * 1024
_CHILD = Path(__file__).with_name("registry_child.py")
_NATIVE = Path(__file__).parent / "native" / "registry.cpp"
_DISTRIBUTIONS = ("tensorrt-lean-cu13-bindings", "tensorrt-lean-cu12-bindings")


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    creators: list[tuple[str, str, str, list[tuple[str, int]]]]
    found: bool
    strangers: list[bool]


def installed_version() -> str | None:
    """Give the version of the installed tensorrt-lean; None: there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def why_not(toolchain: Toolchain) -> str:
    """Say why a toolchain's libraries cannot be loaded into a real registry on this machine; empty: they can."""
    wanted = toolchain.tensorrt
    if wanted is None or wanted.major < 10:
        return "TensorRT 8.6 has no registry that runs without the SDK"
    if toolchain.is_foreign():
        machine = toolchain.host.triple.split("-", maxsplit=1)[0]
        if not toolchain.probe.registry:
            return f"tensorrt-lean of this machine loads no {toolchain.host.triple} library, and probe.registry names none of {machine}"
        if not _lean(toolchain).is_file():
            return f"no {_lean(toolchain).name} in probe.registry = {toolchain.probe.registry}"
        return (
            ""
            if real_headers(toolchain) is not None
            else "there are no TensorRT headers to compile the registry's program with"
        )
    version = installed_version()
    if version is None:
        return "tensorrt-lean is not installed (pip install 'yasp-toolkit[forge-tensorrt]')"
    if version.split(".")[0] != str(wanted.major):
        return f"tensorrt-lean {version} is installed, the toolchain is for TensorRT {wanted.version}"
    return ""


def identity(toolchain: Toolchain) -> list[str | int | None]:
    """Give what decides the check's result beside the library: part of a build's cache key."""
    lean = (
        _lean(toolchain)
        if toolchain.is_foreign() and toolchain.probe.registry and toolchain.tensorrt is not None
        else None
    )
    size = lean.stat().st_size if lean is not None and lean.is_file() else None
    return [installed_version(), why_not(toolchain), size]


def _lean(toolchain: Toolchain) -> Path:
    assert toolchain.tensorrt is not None
    name = f"libnvinfer_lean.so.{toolchain.tensorrt.major}"
    if toolchain.probe.registry:
        return Path(toolchain.probe.registry) / "tensorrt_lean_libs" / name
    spec = importlib.util.find_spec("tensorrt_lean_libs")
    place = next(iter(spec.submodule_search_locations or ()), "") if spec is not None else ""
    return Path(place) / name


def check_registry(
    library: Path,
    meta: PluginMeta,
    toolchain: Toolchain,
    compiler: Compiler,
    *,
    mode: SandboxMode,
    cache_dir: Path | None = None,
    native: bool = False,
) -> CheckResult:
    """Load a library into the registry of tensorrt-lean, in a sandboxed process.

    Call it only where :func:`why_not` has no reason against it.

    Args:
        library: The ``.so``.
        meta: Its contract.
        toolchain: How it was built.
        compiler: The toolchain's.
        mode: "optional" works without a sandbox where there is none.
        cache_dir: A build cache's directory, which keeps the native program.
        native: Use the native program also where TensorRT's Python package could do it.

    Raises:
        BoardError: No sandbox works and ``mode`` is ``required``.
        ToolkitError: The native program does not compile.
    """
    identity = (meta.plugin_namespace, meta.plugin_name, meta.plugin_version)
    wanted = f"only {_text(*identity, field_types(meta))}"
    with tempfile.TemporaryDirectory(prefix="ytk-registry-") as directory:
        workdir = Path(directory)
        (workdir / "plugin.so").write_bytes(library.read_bytes())
        (workdir / SONAME).write_bytes(driver_stub(toolchain.host.sysroot, compiler, mode))
        if toolchain.is_foreign() or native:
            lean = _lean(toolchain)
            (workdir / "registry").write_bytes(_native_program(toolchain, compiler, mode, cache_dir))
            (workdir / "registry").chmod(0o755)
            emulator = toolchain.probe.emulator if toolchain.is_foreign() else []
            files = [str(lean), str(workdir / SONAME), str(workdir / "plugin.so")]
            command = [*emulator, str(workdir / "registry"), *files, *identity, str(workdir / "answer.json")]
            read_only = [lean.parent]
        else:
            request = {"library": str(workdir / "plugin.so"), "driver": str(workdir / SONAME), "wanted": identity}
            (workdir / "request.json").write_text(json.dumps(request), encoding="utf-8")
            command = [sys.executable, "-I", str(_CHILD), "request.json", "answer.json"]
            read_only = [_CHILD.parent]
        done = run_confined(command, workdir, mode=mode, wall_limit_s=LIMIT_S, read_only=read_only)
        answer = _read(workdir / "answer.json")
    if answer is None:
        last = (done.output.strip().splitlines() or [""])[-1][:200]
        found = f"the process ended with {done.returncode} and no answer: {last}"
    else:
        found = " | ".join(_text(*creator) for creator in answer.creators) or "no creator"
        if any(answer.strangers):
            found += "; and it answers to other names"
        elif not answer.found:
            found += "; and get_creator does not find it"
        elif len(answer.creators) == 1:
            found = f"only {found}"
    fix = (
        ""
        if found == wanted
        else "Build the library again from its bundle; if it stays so, report it with the build log."
    )
    return CheckResult(name=CHECK, ok=found == wanted, found=found, wanted=wanted, fix=fix)


def _native_program(toolchain: Toolchain, compiler: Compiler, mode: SandboxMode, cache_dir: Path | None) -> bytes:
    """Give the native program for a toolchain's machine."""
    headers = real_headers(toolchain)
    assert headers is not None
    source = _NATIVE.read_bytes()
    parts = {
        "program": "registry",
        "source": digest_bytes(source),
        "headers": headers.banner,
        "compiler": [compiler.path, compiler.banner, compiler.machine],
        "sysroot": toolchain.host.sysroot,
    }

    def make() -> bytes:
        with tempfile.TemporaryDirectory(prefix="ytk-registry-") as directory:
            workdir = Path(directory)
            (workdir / "registry.cpp").write_bytes(source)
            sysroot = [Path(toolchain.host.sysroot)] if toolchain.host.sysroot else []
            include = [CUDA_TYPES_DIR, Path(headers.include_dir)]
            command = [compiler.path, *(f"--sysroot={path}" for path in sysroot), "-std=c++17", "-O0", "-w"]
            command += [word for path in include for word in ("-isystem", str(path))]
            command += ["registry.cpp", "-o", "registry", "-ldl"]
            done = run_confined(command, workdir, mode=mode, wall_limit_s=LIMIT_S, read_only=[*sysroot, *include])
            if done.returncode:
                first = (done.output.strip().splitlines() or ["no message"])[0]
                msg = f"the registry's program does not compile with {compiler.banner}: {first}"
                raise ToolkitError(
                    msg,
                    code="probe_does_not_compile",
                    hint="Report this; without probe.registry the check is left out.",
                )
            return (workdir / "registry").read_bytes()

    return kept(cache_dir, parts, make)


def _text(namespace: str, name: str, version: str, fields: list[tuple[str, int]]) -> str:
    listed = ", ".join(f"{field} {kind}" for field, kind in fields)
    return f"{namespace}::{name} version {version} ({listed})"


def _read(path: Path) -> _Answer | None:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_ANSWER_BYTES:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
