"""The device compiler that a toolchain names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ytk_core.cuda.nvrtc import Nvrtc, compile_with_nvrtc, find_nvrtc, search_dirs
from ytk_core.cuda.result import DeviceResult
from ytk_core.errors import NotAvailableError
from ytk_core.sandbox import SandboxMode
from ytk_forge.device.nvcc import Nvcc, compile_with_nvcc, find_nvcc
from ytk_forge.toolchain import DeviceCode, DeviceCompiler, DeviceLaunch, Toolchain

DeviceTool: TypeAlias = Nvrtc | Nvcc


def find_device_compiler(toolchain: Toolchain) -> DeviceTool | None:
    """Give a toolchain's device compiler; None where it has no device code.

    Raises:
        NotAvailableError: It is missing, or not supported; the hint says what to install or set.
    """
    device = toolchain.device
    if device is None:
        return None
    if device.compiler is DeviceCompiler.CLANG or device.launch is not DeviceLaunch.DRIVER:
        msg = f"toolchain {toolchain.name}: device code by {device.compiler} with {device.launch} launch is not supported by this Forge"
        hint = 'Use compiler = "nvrtc" or "nvcc", and launch = "driver".'
        raise NotAvailableError(msg, code="device_compiler_unsupported", hint=hint)
    try:
        return _nvrtc_of(device) if device.compiler is DeviceCompiler.NVRTC else find_nvcc(device)
    except NotAvailableError as err:
        raise NotAvailableError(f"toolchain {toolchain.name}: {err.message}", code=err.code, hint=err.hint) from err


def _nvrtc_of(device: DeviceCode) -> Nvrtc:
    """Give the best NVRTC of those that a toolchain names, from its own directory of packages or this interpreter's."""
    places = [*([Path(device.path) / "nvidia"] if device.path else []), *search_dirs()]
    for version in device.prefer:
        with contextlib.suppress(NotAvailableError):
            return find_nvrtc(version, device.install, places)
    return find_nvrtc(device.version, device.install, places)


def compile_device(
    tool: DeviceTool,
    flags: Sequence[str],
    headers: Sequence[Path],
    workdir: Path,
    *,
    mode: SandboxMode,
    log: Callable[[str], None],
) -> DeviceResult:
    """Compile ``kernel.cpp`` in ``workdir`` as device code into ``device.cubin``, in the sandbox.

    Args:
        tool: The compiler.
        flags: :func:`ytk_core.cuda_build.device_flags`.
        headers: Files that the text may include by name; they are in ``workdir`` too.
        workdir: Has ``kernel.cpp``.
        mode: "optional" works without a sandbox where there is none.
        log: Gets the compiler's messages.

    Raises:
        CandidateError: The text does not compile ("device_compile_error"), or takes too long ("compile_timeout").
        BoardError: The compiler was killed or does not load ("device_compiler_broken").
        ToolkitError: The compiler gave no cubin.
    """
    if isinstance(tool, Nvcc):
        return compile_with_nvcc(tool, flags, workdir, mode=mode, log=log)
    return compile_with_nvrtc(tool, flags, headers, workdir, mode=mode, log=log)
