"""Translation units -> shared library: two compilations and one link, each in the sandbox."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.confined import MEMORY_BYTES, Finished, run_confined
from ytk_core.cpu_build import cxx_flags
from ytk_core.cuda_build import device_flags, launcher_flags
from ytk_core.errors import BoardError, CandidateError, ToolkitError
from ytk_core.sandbox import SandboxMode
from ytk_forge.device.compiler import DeviceTool, compile_device
from ytk_forge.device.driver_stub import SONAME, driver_stub
from ytk_forge.render import CUDA_TYPES_DIR, TEMPLATE_DIR
from ytk_forge.toolchain import Compiler, Toolchain

COMPILE_LIMIT_S = 300.0


# The table is ours: a warning in it is a bug of ours.
TABLE_FLAGS = ("-Wall", "-Wextra", "-Werror", "-O2")
# IPluginV2 has overloads that its own subclasses hide, and has been deprecated since it was replaced.
SKELETON_FLAGS = ("-O1", "-Wno-overloaded-virtual", "-Wno-deprecated-declarations")  # -O1: plumbing, in half the time
LINK_FLAGS = (
    # cxx_flags has --no-undefined and --build-id=none: the evaluator links with them too.
    "-Wl,--as-needed",  # NEEDED names only what is used
    "-Wl,-z,noexecstack",
    "-Wl,-z,text",
    "-Wl,--version-script=exports.map",
)


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """The two texts that make a plugin library."""

    kernel: str
    """The submitter's: header and source of the bundle."""
    table: str
    """Ours: :func:`ytk_forge.render.render_table`."""
    skeleton: str | None = None
    """Ours, for TensorRT: the plugin class round the table."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What a compilation gave; not audited yet."""

    library: Path
    device_log: str = ""
    """The device compiler's messages: what it says about registers and spills is nowhere else."""


def build_flags(toolchain: Toolchain, arch: ArchSpec, extra: Sequence[str]) -> list[str]:
    """Give the host compiler's flags of every step; for CPUs the same as the evaluator measured the kernel with.

    A CUDA bundle's own flags are the device compiler's: :func:`ytk_core.cuda_build.device_flags`.

    Raises:
        UserError: A flag of the bundle is not on the allow-list.
    """
    own = cxx_flags(arch, extra) if arch.device_kind == "cpu" else launcher_flags(arch)
    sysroot = [f"--sysroot={toolchain.host.sysroot}"] if toolchain.host.sysroot else []
    # Names in a build directory are relative, so no path gets in; the seed names GCC's anonymous symbols.
    return [*sysroot, *own, "-frandom-seed=ytk"]


def version_script(exports: Iterable[str]) -> str:
    """Give the linker script that hides everything else, also what a source marks as visible itself."""
    return "{\n  global: " + " ".join(f"{name};" for name in sorted(exports)) + "\n  local: *;\n};\n"


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
    device: DeviceTool | None = None,
    trt_include: Path | None = None,
) -> Built:
    """Build ``plugin.so`` in ``workdir`` (an empty directory).

    ``extra_flags`` are the bundle's own; they go to its unit only: to the device compiler for a GPU.

    Raises:
        CandidateError: The bundle's text does not compile ("compile_error", "device_compile_error"), takes too long
            ("compile_timeout"), or does not link ("undefined_symbol", "duplicate_symbol", "link_error").
        BoardError: The compiler was killed, or no sandbox works.
        ToolkitError: A rendered text does not compile.
    """
    headers = [include_dir() / name for name in ("ytk_kernel.h", "ytk_cuda.h")]
    for header in headers:
        (workdir / header.name).write_bytes(header.read_bytes())
    (workdir / "kernel.cpp").write_text(units.kernel, encoding="utf-8")
    (workdir / "exports.map").write_text(version_script(toolchain.exports()), encoding="utf-8")
    plain = build_flags(toolchain, arch, ())
    log(f"# flags: {' '.join(plain)}\n")
    host = _Host(toolchain=toolchain, compiler=compiler, workdir=workdir, mode=mode, log=log, plain=plain)

    # The bundle's own text first: it is the likeliest to fail, and who wrote it is waiting.
    device_log = ""
    if device is not None:
        own = device_flags(arch, extra_flags)
        device_log = compile_device(device, own, headers, workdir, mode=mode, log=log).log
    flags = build_flags(toolchain, arch, extra_flags if device is None else ())
    kernel = host.step(*flags, "-c", "kernel.cpp", "-o", "kernel.o")
    if kernel.returncode:
        msg = f"the kernel does not compile: {_first_error(kernel.output)}"
        hint = "The build log has all messages; lines count from the start of HEADER or SOURCE."
        raise CandidateError(msg, code="compile_error", hint=hint)
    host.ours("plugin", units.table)
    objects = ["kernel.o", "plugin.o"]
    if device is not None:
        host.ours("module", (TEMPLATE_DIR / "cuda_module.cpp").read_text(encoding="utf-8"))
        (workdir / SONAME).write_bytes(driver_stub(toolchain.host.sysroot, compiler, mode))
        objects += ["module.o", SONAME]
    if units.skeleton is not None:
        (workdir / "trt_common.h").write_bytes((TEMPLATE_DIR / "trt_common.h").read_bytes())
        # The SDK's headers: their warnings are not ours to mend. What they include of CUDA is ours, and found first.
        include = [CUDA_TYPES_DIR, *([trt_include] if trt_include is not None else [])]
        host.ours("skeleton", units.skeleton, *SKELETON_FLAGS, system_include=include)
        objects.append("skeleton.o")
    linked = host.step(*flags, *LINK_FLAGS, *objects, "-o", "plugin.so")
    if linked.returncode:
        raise _link_error(linked.output)
    return Built(library=workdir / "plugin.so", device_log=device_log)


class _Host(msgspec.Struct, kw_only=True):
    """The host compiler at work in one directory."""

    toolchain: Toolchain
    compiler: Compiler
    workdir: Path
    mode: SandboxMode
    log: Callable[[str], None]
    plain: list[str]

    def ours(self, name: str, text: str, *arguments: str, system_include: Sequence[Path] = ()) -> None:
        """Compile a text of ours, where a warning is an error of ours."""
        (self.workdir / f"{name}.cpp").write_text(text, encoding="utf-8")
        done = self.step(
            *self.plain, *TABLE_FLAGS, *arguments, "-c", f"{name}.cpp", "-o", f"{name}.o", system_include=system_include
        )
        if done.returncode:
            what = "plugin table" if name == "plugin" else name
            msg = f"the rendered {what} does not compile: {_first_error(done.output)}"
            raise ToolkitError(msg, code="table_does_not_compile", hint="Report this with the kernel bundle.")

    def step(self, *arguments: str, system_include: Sequence[Path] = ()) -> Finished:
        """Run the compiler once; what ends it from outside is an error, its messages are not.

        Raises:
            CandidateError: "compile_timeout", "compile_memory".
            BoardError: "disk_full", "compiler_killed".
        """
        sysroot = [Path(self.toolchain.host.sysroot)] if self.toolchain.host.sysroot else []
        own = " ".join(argument for argument in arguments if argument not in self.plain)
        # Where a machine keeps its headers is not in the log: the log of the same build is the same everywhere.
        self.log(f"$ {Path(self.compiler.path).name} [flags] {own}\n")
        places = [argument for path in system_include for argument in ("-isystem", str(path))]
        done = run_confined(
            [self.compiler.path, *arguments, *places],
            self.workdir,
            mode=self.mode,
            wall_limit_s=COMPILE_LIMIT_S,
            read_only=[*sysroot, *system_include],
        )
        self.log(done.output)
        if done.timed_out or done.returncode == -signal.SIGXCPU:
            msg = f"compiling took more than {COMPILE_LIMIT_S:g} s and was ended"
            raise CandidateError(
                msg, code="compile_timeout", hint="Generate a smaller kernel (less unrolling, fewer templates)."
            )
        if "No space left on device" in done.output:
            msg = f"no space for the compiler's files in {self.workdir}"
            raise BoardError(msg, code="disk_full", hint=f"Free space on the file system of {self.workdir.parent}.")
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
