"""What a compiler and a cubin say about CUDA kernels: all that is known of their speed where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.cuda.cubin import KernelUse, read_cubin, with_compiler_notes
from ytk_core.cuda.nvrtc import Nvrtc, compile_with_nvrtc, find_nvrtc
from ytk_core.cuda.occupancy import occupancy
from ytk_core.cuda_build import device_flags, sm_of
from ytk_core.formats.kernel_bundle import KernelBundle, translation_unit
from ytk_core.sandbox import SandboxMode

THREADS = 256
"""The block size that occupancy is told for."""
_INSTALL = "pip install 'yasp-toolkit[forge-cuda]'"


class KernelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kernel of a cubin. ``occupancy``: share of a multiprocessor's warps, 0 to 1; None for a GPU that we have no figures of."""

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    spill_bytes: int
    occupancy: float | None


class DeviceFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A candidate's device code. Nothing in here was measured."""

    compiler: str
    sm: str
    kernels: tuple[KernelFacts, ...]

    @property
    def static_order(self) -> tuple[int, int, float, int]:
        """Give what candidates are ordered by where nothing was measured, the smaller the better.

        No spills first, then fewer kernels (each is a launch and a pass over memory), more warps at a time, fewer registers.
        """
        shares = [k.occupancy for k in self.kernels if k.occupancy is not None]
        spilled = sum(k.spill_bytes for k in self.kernels)
        return (
            spilled,
            len(self.kernels),
            -min(shares, default=0.0),
            max((k.registers for k in self.kernels), default=0),
        )


def nvrtc_for(arch: ArchSpec) -> Nvrtc:
    """Give the NVRTC whose cubins the arch's driver loads: 11.8 serves CUDA 11 and 12.

    Raises:
        NotAvailableError: It is not installed.
    """
    return find_nvrtc("13.0" if int(arch.runtime[2:4]) >= 13 else "11.8", _INSTALL)


def facts_of(cubin: bytes, log: str, compiler: str, sm: str) -> DeviceFacts:
    """Read what a cubin and its compiler's messages say.

    Raises:
        NotCubinError: It is none.
    """
    found = read_cubin(cubin)
    kernels = with_compiler_notes(found.kernels, log)
    return DeviceFacts(
        compiler=compiler,
        sm=sm,
        kernels=tuple(_kernel(name, use, found.sm) for name, use in sorted(kernels.items())),
    )


def _kernel(name: str, use: KernelUse, sm: int) -> KernelFacts:
    return KernelFacts(
        name=name,
        registers=use.registers,
        stack_bytes=use.stack_bytes,
        shared_bytes=use.shared_bytes,
        spill_bytes=use.spill_bytes or 0,
        occupancy=occupancy(sm, use, THREADS),
    )


def compile_for(
    bundle: KernelBundle, arch: ArchSpec, nvrtc: Nvrtc, directory: Path, mode: SandboxMode
) -> tuple[bytes, DeviceFacts]:
    """Compile a bundle's device code for a GPU, in the sandbox, with the flags that Forge will use.

    Args:
        bundle: A CUDA bundle; nothing in it is trusted.
        arch: A GPU arch spec.
        nvrtc: See :func:`nvrtc_for`.
        directory: Empty.
        mode: Whether a sandbox is required.

    Returns:
        The cubin, and the facts about it.

    Raises:
        CandidateError: It does not compile, or takes too long.
        UserError: A flag of the bundle is not allowed.
        BoardError: The compiler does not work here.
    """
    (directory / "kernel.cpp").write_text(translation_unit(bundle), encoding="utf-8")
    headers: Sequence[Path] = [include_dir() / name for name in ("ytk_kernel.h", "ytk_cuda.h")]
    flags = device_flags(arch, bundle.meta.compile_flags)
    done = compile_with_nvrtc(nvrtc, flags, headers, directory, mode=mode, log=lambda _text: None)
    return done.cubin, facts_of(done.cubin, done.log, nvrtc.banner, sm_of(arch))
