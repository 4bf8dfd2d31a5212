"""The last word short of a GPU: a real TensorRT's plugin registry loads the library and finds the creator in it."""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import msgspec

from ytk_core.confined import run_confined
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.sandbox import SandboxMode
from ytk_forge.device.driver_stub import SONAME, driver_stub
from ytk_forge.probe.compare import field_types
from ytk_forge.toolchain import Compiler, Toolchain

CHECK = "registry"
LIMIT_S = 60.0
_MAX_ANSWER_BYTES = 1024 * 1024
_CHILD = Path(__file__).with_name("registry_child.py")
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
        return f"tensorrt-lean of this machine loads no {toolchain.host.triple} library"
    version = installed_version()
    if version is None:
        return "tensorrt-lean is not installed (pip install 'yasp-toolkit[forge-tensorrt]')"
    if version.split(".")[0] != str(wanted.major):
        return f"tensorrt-lean {version} is installed, the toolchain is for TensorRT {wanted.version}"
    return ""


def check_registry(
    library: Path, meta: PluginMeta, toolchain: Toolchain, compiler: Compiler, *, mode: SandboxMode
) -> CheckResult:
    """Load a library into the registry of tensorrt-lean, in a sandboxed process.

    Call it only where :func:`why_not` has no reason against it.

    Raises:
        BoardError: No sandbox works and ``mode`` is ``required``.
    """
    identity = (meta.plugin_namespace, meta.plugin_name, meta.plugin_version)
    wanted = f"only {_text(*identity, field_types(meta))}"
    with tempfile.TemporaryDirectory(prefix="ytk-registry-") as directory:
        workdir = Path(directory)
        (workdir / "plugin.so").write_bytes(library.read_bytes())
        (workdir / SONAME).write_bytes(driver_stub(toolchain.host.sysroot, compiler, mode))
        request = {"library": str(workdir / "plugin.so"), "driver": str(workdir / SONAME), "wanted": identity}
        (workdir / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-I", str(_CHILD), "request.json", "answer.json"]
        done = run_confined(command, workdir, mode=mode, wall_limit_s=LIMIT_S, read_only=[_CHILD.parent])
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
