"""The audit's checks of device code: the cubin inside a built library, against the launcher beside it and the target."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.cuda.cubin import ABI_OF_CUDA, Cubin, KernelUse, NotCubinError, read_cubin, with_compiler_notes
from ytk_core.cuda.occupancy import LIMITS, occupancy
from ytk_core.cuda_build import sm_of
from ytk_core.formats.plugin_manifest import CheckResult

CHECKS = ("cubin", "cubin_sm", "cubin_abi", "cubin_undefined", "kernels", "resources")
_THREADS = 256
"""The block size that occupancy is told for: what a launcher chooses is known at run time only."""


def read_device_sections(library: Path) -> tuple[bytes | None, tuple[str, ...]]:
    """Give a library's cubin (None: it has none) and the names of the kernels that its launcher uses."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(library.read_bytes()))
    cubin, names = (elf.get_section_by_name(section) for section in (".ytk_cubin", "ytk_kernels"))
    words = b"" if names is None else names.data()
    launched = dict.fromkeys(word.decode("utf-8", "backslashreplace") for word in words.split(b"\0") if word)
    return (None if cubin is None else cubin.data()), tuple(launched)


def device_checks(library: Path, *, arch: ArchSpec, compiler_log: str = "") -> list[CheckResult]:
    """Check the device code of a library that the host checks have read already; nothing is loaded.

    Args:
        library: An ELF shared library.
        arch: A GPU arch spec.
        compiler_log: The device compiler's messages, where they are at hand: what they say of spills goes into the result.
    """
    content, launched = read_device_sections(library)
    wanted = f"a cubin for {sm_of(arch)}"
    try:
        cubin = None if content is None else read_cubin(content)
    except NotCubinError as err:
        return [_result("cubin", ok=False, found=str(err), wanted=wanted, fix="Report this with the build log.")]
    if cubin is None:
        fix = "Build it with the toolchain's device compiler: without device code there is no kernel image for the GPU."
        return [_result("cubin", ok=False, found="no device code", wanted=wanted, fix=fix)]
    kernels = with_compiler_notes(cubin.kernels, compiler_log)
    missing = sorted(set(launched) - set(kernels))
    return [
        _result("cubin", ok=True, found=f"a cubin with {_listed(kernels)}", wanted=wanted, fix=""),
        _result(
            "cubin_sm",
            ok=f"sm_{cubin.sm}" == sm_of(arch).rstrip("abcdefghijklmnopqrstuvwxyz"),
            found=f"sm_{cubin.sm}",
            wanted=sm_of(arch),
            fix=f"Build for the GPU of {arch}: on another one the driver says 'no kernel image is available'.",
        ),
        _abi_check(cubin, arch),
        _result(
            "cubin_undefined",
            ok=not cubin.undefined,
            found=_listed(cubin.undefined) if cubin.undefined else "every device function is defined",
            wanted="every device function is defined",
            fix="Define these functions in the bundle's device code: a plugin has one cubin, and nothing is linked to it.",
        ),
        _result(
            "kernels",
            ok=bool(launched) and not missing,
            found=(f"the launcher uses {_listed(launched)}; " if launched else "the launcher uses no kernel; ")
            + (f"the cubin lacks {_listed(missing)}" if missing else "the cubin has them"),
            wanted="every kernel of a YTK_KERNEL declaration is in the cubin, and there is one",
            fix='Define each kernel as extern "C" __global__ under #ifdef __CUDACC__; a template has to be instantiated by such a kernel.',
        ),
        _resource_check(kernels, cubin.sm),
    ]


def _abi_check(cubin: Cubin, arch: ArchSpec) -> CheckResult:
    """A driver reads the cubin ABI of its own CUDA and of older ones."""
    cuda = int(arch.runtime[2:4])
    known = {ABI_OF_CUDA[major] for major in ABI_OF_CUDA if major <= cuda}
    return _result(
        "cubin_abi",
        ok=(cubin.os_abi, cubin.abi_version) in known,
        found=f"OS/ABI 0x{cubin.os_abi:02x} version {cubin.abi_version}",
        wanted=" or ".join(f"OS/ABI 0x{os_abi:02x} version {version}" for os_abi, version in sorted(known))
        or f"an ABI that is known for CUDA {cuda}",
        fix=f"Compile the device code with an NVRTC that is not newer than the driver's CUDA ({arch.runtime}).",
    )


def _resource_check(kernels: Mapping[str, KernelUse], sm: int) -> CheckResult:
    limit = LIMITS[sm].shared_bytes_per_block if sm in LIMITS else None
    too_much = sorted(name for name, use in kernels.items() if limit is not None and use.shared_bytes > limit)
    texts = [_use(name, use, sm) for name, use in sorted(kernels.items())]
    return _result(
        "resources",
        ok=bool(kernels) and not too_much,
        found="; ".join(texts) or "no kernel",
        wanted="a kernel" if limit is None else f"at most {limit} bytes of shared memory a block",
        fix=f"Use less shared memory in {_listed(too_much)}." if too_much else "Define a kernel.",
    )


def _use(name: str, use: KernelUse, sm: int) -> str:
    parts = [f"{use.registers} registers", f"{use.stack_bytes} B stack"]
    if use.spill_bytes is not None:
        parts.append(f"{use.spill_bytes} B spills")
    parts.append(f"{use.shared_bytes} B shared")
    share = occupancy(sm, use, _THREADS)
    parts.append(
        f"occupancy {share:.0%} at {_THREADS} threads" if share is not None else "occupancy unknown for this GPU"
    )
    return f"{name}: {', '.join(parts)}"


def _listed(items: Iterable[str]) -> str:
    return ", ".join(sorted(items)) or "nothing"


def _result(name: str, *, ok: bool, found: str, wanted: str, fix: str) -> CheckResult:
    return CheckResult(name=name, ok=ok, found=found, wanted=wanted, fix="" if ok else fix)
