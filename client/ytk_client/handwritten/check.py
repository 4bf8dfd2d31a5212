"""What can be said of a kernel written by hand before a job is spent on it: its contract, its target, its region, and that it compiles."""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ytk_client.handwritten.skeleton import STATUS, is_skeleton
from ytk_client.plugins import check_name, check_nodes, check_target
from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.confined import run_confined
from ytk_core.errors import NotAvailableError, YtkError
from ytk_core.formats.kernel_bundle import KernelBundle, read_bundle, translation_unit
from ytk_core.formats.region import RegionSpec, RegionTensor
from ytk_core.node_contracts import NodeContract, TensorContract
from ytk_core.preflight import compare_node_meta

_LIMIT_S = 120.0
_MACHINE_OF_CPU = {"amd64": "x86_64", "arm64": "aarch64"}
_NVRTC_OF_CUDA = {"11": ("11.8",), "12": ("12.6", "11.8"), "13": ("13.0",)}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check. ``ok``: None where it could not be made here; ``fix``: what to do, where it failed."""

    check: str
    ok: bool | None
    found: str
    fix: str = ""


def check_kernel(
    path: Path, arch: ArchSpec, *, region: RegionSpec | None = None, onnx: Path | None = None, precision: str = "fp32"
) -> list[Finding]:
    """Check a kernel bundle; its text is compiled in the sandbox where one works, and never run.

    Args:
        path: The bundle.
        arch: What it is for.
        region: The region that it stands for.
        onnx: A model with its node.
        precision: What the engine of that model will be built with.

    Raises:
        FormatError: It is no kernel bundle, or its contract contradicts itself.
    """
    bundle = read_bundle(path)
    found = [
        Finding(
            check="contract",
            ok=True,
            found=f"{bundle.meta.plugin_namespace}::{bundle.meta.plugin_name}, agrees with itself",
        ),
        _asked("target", f"for {arch}", lambda: _check_target(bundle, arch, path)),
    ]
    if region is not None:
        found.append(_asked("region", "of this region", lambda: _check_region(bundle, region, precision, arch)))
    if onnx is not None:
        found.append(
            _asked(
                "node",
                f"fits the nodes in {onnx.name}",
                lambda: check_nodes(onnx, bundle.meta, precision=precision, arch=arch),
            )
        )
    if all(each.ok for each in found):
        found += _compiles(bundle, arch)
    skeleton = f"yes: the launcher returns {STATUS}, which fails every inference" if is_skeleton(bundle) else "no"
    return [*found, Finding(check="skeleton", ok=True, found=skeleton)]


def _asked(check: str, good: str, ask: Callable[[], None]) -> Finding:
    try:
        ask()
    except YtkError as err:
        return Finding(check=check, ok=False, found=err.message, fix=err.hint)
    return Finding(check=check, ok=True, found=good)


def _check_target(bundle: KernelBundle, arch: ArchSpec, path: Path) -> None:
    check_target(bundle.meta, arch, str(path))
    check_name(bundle.meta, arch)


class _DiffersError(YtkError):
    """A difference, on its way into a finding."""


def _check_region(bundle: KernelBundle, region: RegionSpec, precision: str, arch: ArchSpec) -> None:
    node = NodeContract(
        namespace=region.namespace,
        name=region.name,
        version=region.version,
        node_name="",
        inputs=tuple(map(_tensor, region.inputs)),
        outputs=tuple(map(_tensor, region.outputs)),
        attributes={},
    )
    if differences := compare_node_meta(node, bundle.meta, precision, arch):
        raise _DiffersError(differences[0].text(), hint=differences[0].hint)
    if bundle.meta.region_digest != region.digest:
        msg = f"region_digest is {bundle.meta.region_digest}, the region's is {region.digest}: it was written for another one"
        raise _DiffersError(
            msg,
            hint="Compare the two with `ytk embedded inspect`; if the kernel is right for this one, change region_digest.",
        )


def _tensor(tensor: RegionTensor) -> TensorContract:
    dims = tuple(None if axis in tensor.dynamic_axes else extent for axis, extent in enumerate(tensor.shape))
    return TensorContract(tensor.dtype, len(dims), dims)


# ---- compiling -------------------------------------------------------------------------------------------------------


def _compiles(bundle: KernelBundle, arch: ArchSpec) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="ytk-kernel-check-") as directory:
        workdir = Path(directory)
        (workdir / "kernel.cpp").write_text(translation_unit(bundle), encoding="utf-8")
        for header in include_dir().glob("*.h"):
            (workdir / header.name).write_bytes(header.read_bytes())
        yield _host(bundle, arch, workdir)
        if arch.device_kind == "gpu":
            yield _device(bundle, arch, workdir)


def _host(bundle: KernelBundle, arch: ArchSpec, workdir: Path) -> Finding:
    from ytk_core.cpu_build import cxx_flags
    from ytk_core.cuda_build import launcher_flags

    check = "launcher compiles" if arch.device_kind == "gpu" else "compiles"
    machine = _MACHINE_OF_CPU[arch.cpu]
    names = (f"{machine}-linux-gnu-g++", *(("g++",) if platform.machine() == machine else ()))
    compiler = next((hit for name in names if (hit := shutil.which(name))), None)
    if compiler is None:
        return Finding(check=check, ok=None, found=f"no compiler for {machine} here; build-plugin compiles it")
    try:
        flags = launcher_flags(arch) if arch.device_kind == "gpu" else cxx_flags(arch, bundle.meta.compile_flags)
    except YtkError as err:
        return Finding(check=check, ok=False, found=err.message, fix=err.hint)
    flags = [flag for flag in flags if not flag.startswith("-Wl,") and flag != "-shared"]
    # -Wall: a warning of a kernel written by hand is worth reading, and stops nobody.
    done = run_confined(
        [compiler, *flags, "-Wall", "-fsyntax-only", "kernel.cpp"], workdir, mode="optional", wall_limit_s=_LIMIT_S
    )
    lines = [line for line in done.output.splitlines() if "error" in line or "warning" in line]
    if done.returncode or done.timed_out:
        return Finding(
            check=check,
            ok=False,
            found=(lines or ["no message"])[0],
            fix="Lines count from the start of HEADER or SOURCE.",
        )
    warned = f"; {len(lines)} warnings, the first: {lines[0]}" if lines else ""
    return Finding(check=check, ok=True, found=f"with {Path(compiler).name}{warned}")


def _device(bundle: KernelBundle, arch: ArchSpec, workdir: Path) -> Finding:
    from ytk_core.cuda.nvrtc import compile_with_nvrtc, find_nvrtc
    from ytk_core.cuda_build import device_flags

    check = "device code compiles"
    for version in _NVRTC_OF_CUDA.get(arch.runtime[2:4], ()):
        with contextlib.suppress(NotAvailableError):
            nvrtc = find_nvrtc(version, "pip install 'yasp-toolkit[forge-cuda]'")
            break
    else:
        return Finding(
            check=check,
            ok=None,
            found="no NVRTC for it here (pip install 'yasp-toolkit[forge-cuda]'); build-plugin compiles it",
        )
    headers = [include_dir() / name for name in ("ytk_kernel.h", "ytk_cuda.h")]
    try:
        flags = device_flags(arch, bundle.meta.compile_flags)
        compile_with_nvrtc(nvrtc, flags, headers, workdir, mode="optional", log=_discard)
    except YtkError as err:
        return Finding(check=check, ok=False, found=err.message, fix=err.hint)
    return Finding(check=check, ok=True, found=f"with NVRTC {nvrtc.version}")


def _discard(_text: str) -> None:
    """The messages of interest are in the error."""
