"""Translation units -> shared library: two compilations and one link, each in the sandbox."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.cpu_build import cxx_flags
from ytk_core.errors import BoardError, CandidateError, ToolkitError
from ytk_core.sandbox import SandboxMode

from ytk_forge.confined import MEMORY_BYTES, Finished, run_confined
from ytk_forge.toolchain import Compiler, Toolchain

COMPILE_LIMIT_S = 300.0


# The table is ours: a warning in it is a bug of ours.
TABLE_FLAGS = ("-Wall", "-Wextra", "-Werror", "-O2")
LINK_FLAGS = (
    # cxx_flags has --no-undefined and --build-id=none: the evaluator links with them too.
    "-Wl,--as-needed",  # NEEDED names only what is used
    "-Wl,-z,noexecstack",
    "-Wl,-z,text",
    "-Wl,--version-script=exports.map",
)
# One entry point, also where a source marks its own functions or std:: templates as visible.
EXPORTS = "{\n  global: ytk_plugin;\n  local: *;\n};\n"


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """The two texts that make a plugin library."""

    kernel: str
    """The submitter's: header and source of the bundle."""
    table: str
    """Ours: :func:`ytk_forge.render.render_table`."""


def build_flags(toolchain: Toolchain, arch: ArchSpec, extra: Sequence[str]) -> list[str]:
    """Give the flags of every step; the same as the evaluator measured the kernel with, and what reproducibility asks.

    Raises:
        UserError: A flag of the bundle is not on the allow-list, or the arch spec is no CPU level.
    """
    sysroot = [f"--sysroot={toolchain.host.sysroot}"] if toolchain.host.sysroot else []
    # Names in a build directory are relative, so no path gets in; the seed names GCC's anonymous symbols.
    return [*sysroot, *cxx_flags(arch, extra), "-frandom-seed=ytk"]


def compile_plugin(
    units: Units,
    *,
    toolchain: Toolchain,
    compiler: Compiler,
    arch: ArchSpec,
    extra_flags: Sequence[str],
    workdir: Path,
    mode: SandboxMode,
    log: Callable[[str], None],
) -> Path:
    """Build ``plugin.so`` in ``workdir`` (an empty directory).

    ``extra_flags`` are the bundle's own; they go to its unit only.

    Returns:
        The path of the library; not audited yet.

    Raises:
        CandidateError: The bundle's text does not compile ("compile_error"), takes too long ("compile_timeout"), or does
            not link ("undefined_symbol", "duplicate_symbol", "link_error").
        BoardError: The compiler was killed, or no sandbox works.
        ToolkitError: The rendered table does not compile.
    """
    (workdir / "ytk_kernel.h").write_bytes((include_dir() / "ytk_kernel.h").read_bytes())
    (workdir / "kernel.cpp").write_text(units.kernel, encoding="utf-8")
    (workdir / "plugin.cpp").write_text(units.table, encoding="utf-8")
    (workdir / "exports.map").write_text(EXPORTS, encoding="utf-8")
    sysroot = [Path(toolchain.host.sysroot)] if toolchain.host.sysroot else []
    plain = build_flags(toolchain, arch, ())
    log(f"# flags: {' '.join(plain)}\n")

    def step(*arguments: str) -> Finished:
        own = " ".join(argument for argument in arguments if argument not in plain)
        log(f"$ {Path(compiler.path).name} [flags] {own}\n")
        done = run_confined(
            [compiler.path, *arguments], workdir, mode=mode, wall_limit_s=COMPILE_LIMIT_S, read_only=sysroot
        )
        log(done.output)
        if done.timed_out or done.returncode == -signal.SIGXCPU:
            msg = f"compiling took more than {COMPILE_LIMIT_S:g} s and was ended"
            raise CandidateError(
                msg, code="compile_timeout", hint="Generate a smaller kernel (less unrolling, fewer templates)."
            )
        if "No space left on device" in done.output:
            msg = f"no space for the compiler's files in {workdir}"
            raise BoardError(msg, code="disk_full", hint=f"Free space on the file system of {workdir.parent}.")
        if re.search(r"out of memory|virtual memory exhausted|cannot allocate memory", done.output, re.IGNORECASE):
            msg = f"compiling needs more than {MEMORY_BYTES // 2**20} MiB: {_first_error(done.output)}"
            raise CandidateError(
                msg, code="compile_memory", hint="Generate a smaller kernel (less unrolling, fewer templates)."
            )
        if done.returncode < 0 or "Killed signal terminated program" in done.output:
            msg = f"the compiler was ended by a signal: {_first_error(done.output) or done.returncode}"
            raise BoardError(
                msg, code="compiler_killed", hint="The machine ran out of memory: give Forge more, or fewer slots."
            )
        return done

    flags = build_flags(toolchain, arch, extra_flags)
    table = step(*plain, *TABLE_FLAGS, "-c", "plugin.cpp", "-o", "plugin.o")
    if table.returncode:
        msg = f"the rendered plugin table does not compile: {_first_error(table.output)}"
        raise ToolkitError(msg, code="table_does_not_compile", hint="Report this with the kernel bundle.")
    kernel = step(*flags, "-c", "kernel.cpp", "-o", "kernel.o")
    if kernel.returncode:
        msg = f"the kernel does not compile: {_first_error(kernel.output)}"
        raise CandidateError(
            msg,
            code="compile_error",
            hint="The build log has all messages; lines count from the start of HEADER or SOURCE.",
        )
    linked = step(*flags, *LINK_FLAGS, "kernel.o", "plugin.o", "-o", "plugin.so")
    if linked.returncode:
        raise _link_error(linked.output)
    return workdir / "plugin.so"


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if re.search(r"\berror\b|\bfatal\b", line)]
    return (lines or output.splitlines() or ["no message"])[0].strip()


def _link_error(output: str) -> CandidateError:
    if undefined := sorted(set(re.findall(r"undefined reference to [`']([^']+)'", output))):
        msg = f"the kernel uses functions that no library of the target has: {', '.join(undefined[:8])}"
        hint = 'Define them in the bundle\'s SOURCE (the launcher as extern "C", not static), or do without.'
        return CandidateError(msg, code="undefined_symbol", hint=hint)
    if twice := sorted(set(re.findall(r"multiple definition of [`']([^']+)'", output))):
        msg = f"the kernel defines what Forge renders: {', '.join(twice[:8])}"
        return CandidateError(msg, code="duplicate_symbol", hint="Leave these definitions out of the bundle's SOURCE.")
    lines = [line for line in output.splitlines() if "ld: " in line] or output.splitlines() or ["no message"]
    return CandidateError(
        f"the kernel does not link: {lines[0].strip()}", code="link_error", hint="The build log has all messages."
    )
