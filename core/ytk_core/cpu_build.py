"""Compiler flags of CPU kernels: one pure function, used where kernels are measured and where they are shipped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError

MARCH: dict[str, str] = {
    "cpuv2": "x86-64-v2",
    "cpuv3": "x86-64-v3",
    "cpuv4": "x86-64-v4",
    "cpu80": "armv8-a",
    "cpu82": "armv8.2-a+fp16+dotprod",
}

# Optimisation choices only: nothing here names a file, a macro, a library or a language level.
_ALLOWED = re.compile(
    r"-O[23]|-funroll-loops|-fno-unroll-loops|-fno-tree-vectorize|-fno-math-errno|-fno-trapping-math|-fno-signed-zeros"
    r"|-fassociative-math|-freciprocal-math|-ffinite-math-only|-ffp-contract=(?:fast|off|on)"
    r"|-mprefer-vector-width=(?:128|256|512)|-fvect-cost-model=(?:unlimited|dynamic|cheap|very-cheap)"
    r"|-fno-inline-functions|-fprefetch-loop-arrays|--param=[a-z0-9-]{1,48}=[0-9]{1,9}"
)
# Why a flag that people try is not on the list.
_REFUSED = {
    # gcc before 13 links crtfastmath.o into a shared library too, which flips denormals for the whole process.
    "-ffast-math": "it changes the floating-point mode of the whole engine process; name its parts, e.g. -fassociative-math",
    "-Ofast": "it implies -ffast-math; name its parts, e.g. -fassociative-math",
    "-funsafe-math-optimizations": "it changes the floating-point mode of the whole engine process; name its parts",
    "-march=native": "kernels are compiled for the level in the arch spec, never for the build machine",
}


def check_compile_flags(flags: Sequence[str]) -> None:
    """Check extra flags against the allow-list.

    Raises:
        UserError: ``flag_not_allowed``; names the flag and, where known, the reason.
    """
    for flag in flags:
        if not _ALLOWED.fullmatch(flag):
            why = _REFUSED.get(flag, "only optimisation flags are accepted")
            raise UserError(
                f"compile flag {flag!r} is not allowed: {why}",
                code="flag_not_allowed",
                hint="Remove it from compile_flags in the kernel bundle's plugin_meta.",
            )


def cxx_flags(arch: ArchSpec, extra: Sequence[str] = ()) -> list[str]:
    """Give the compile and link flags of a CPU kernel library, without files, compiler or output name.

    Args:
        arch: A CPU arch spec; its device level becomes ``-march``.
        extra: ``compile_flags`` of the plugin_meta, each on the allow-list.

    Raises:
        UserError: The arch spec is no known CPU level, or a flag is not allowed.
    """
    if arch.device not in MARCH:
        msg = f"{arch.device!r} in {arch} is no CPU level that kernels can be compiled for"
        raise UserError(msg, code="bad_arch_spec", hint=f"CPU levels: {', '.join(MARCH)}.")
    check_compile_flags(extra)
    return [
        "-std=c++17",
        "-O3",
        f"-march={MARCH[arch.device]}",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-fopenmp",
        # GCC and clang differ in the default under -std=c++17; contraction is what a fused multiply-add needs.
        "-ffp-contract=fast",
        "-fno-math-errno",
        "-fno-semantic-interposition",
        *extra,
        "-Wl,--no-undefined",
        "-Wl,-z,relro,-z,now",
        # The same source must give the same bytes.
        "-Wl,--build-id=none",
    ]
