"""Compiler flags of CUDA kernels: pure functions, used where kernels are measured and where they are shipped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError

# Optimisation choices only: nothing here names a file, a macro or a language level.
_ALLOWED = re.compile(
    r"--maxrregcount=(?:[1-9]\d|1\d\d|2[0-4]\d|25[0-5])|--use_fast_math|--extra-device-vectorization"
    r"|--(?:fmad|ftz|prec-div|prec-sqrt)=(?:true|false)"
)
_BASELINE = {"amd64": "x86-64", "arm64": "armv8-a"}


def check_device_flags(flags: Sequence[str]) -> None:
    """Check a CUDA bundle's extra flags against the allow-list.

    Raises:
        UserError: ``flag_not_allowed``; names the flag.
    """
    for flag in flags:
        if not _ALLOWED.fullmatch(flag):
            msg = f"compile flag {flag!r} is not allowed in a CUDA bundle: only optimisation flags of the device compiler are accepted"
            hint = "Remove it from compile_flags in the kernel bundle's plugin_meta; --maxrregcount=N, --use_fast_math, --fmad=, --ftz=, --prec-div= and --prec-sqrt= are accepted."
            raise UserError(msg, code="flag_not_allowed", hint=hint)


def sm_of(arch: ArchSpec) -> str:
    """Give the compute capability as CUDA's compilers name it: ``sm_87`` for the device ``sm87``.

    Raises:
        UserError: The arch spec is no GPU.
    """
    if arch.device_kind != "gpu":
        msg = f"{arch.device!r} in {arch} is no GPU that CUDA kernels can be compiled for"
        raise UserError(msg, code="bad_arch_spec", hint="The device of a GPU arch spec is like sm87.")
    return f"sm_{arch.device[2:]}"


def device_flags(arch: ArchSpec, extra: Sequence[str] = ()) -> list[str]:
    """Give the device compiler's flags, without files and include directories; NVRTC and nvcc take the same ones.

    Args:
        arch: A GPU arch spec.
        extra: ``compile_flags`` of the plugin_meta, each on the allow-list.

    Raises:
        UserError: The arch spec is no GPU, or a flag is not allowed.
    """
    check_device_flags(extra)
    return [f"--gpu-architecture={sm_of(arch)}", "--std=c++17", *extra]


def launcher_flags(arch: ArchSpec) -> list[str]:
    """Give the host compiler's compile and link flags for the launcher: it computes nothing, so any CPU will do.

    Raises:
        UserError: The arch spec is no GPU.
    """
    sm_of(arch)
    return [
        "-std=c++17",
        "-O2",
        f"-march={_BASELINE[arch.cpu]}",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-fno-semantic-interposition",
        "-Wl,--no-undefined",
        "-Wl,-z,relro,-z,now",
        # The same source must give the same bytes.
        "-Wl,--build-id=none",
    ]
