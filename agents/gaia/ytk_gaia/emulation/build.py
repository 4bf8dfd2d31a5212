"""Compiles a CUDA kernel bundle as C++ into a library that an evaluator's process can call, in the sandbox.

Three units: the bundle's device half with our ``ytk_cuda.h`` in front of the real one, its launcher half as any host compiler sees
it, and the runtime that stands in for the driver.
"""

from __future__ import annotations

import enum
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from ytk_core.abi import include_dir
from ytk_core.errors import ToolkitError
from ytk_core.formats.kernel_bundle import KernelBundle, translation_unit
from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap
from ytk_gaia.evaluator.build import COMPILE_LIMIT_S, Built, child_mark, compiler, judged_unit, run_limited

ORDERS = ("forward", "backward", "shuffled")
"""In which the threads of a block, and the blocks, get their turn; the runtime knows them by number."""
MAX_VARIANTS = 64
_GIB = 1 << 30
_COMMON = ("-std=c++17", "-O1", "-fPIC", "-g1", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-w")
# What a warp does together is undefined in C++ in no way that a GPU does not have as well; alignment is checked by neither.
_UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=alignment,vptr,null")


class Check(enum.StrEnum):
    """What the compiler adds to the device code for the runtime to look at."""

    NOTHING = "plain"
    BOUNDS = "bounds"
    RACES = "races"


_INSTRUMENTED: dict[Check, tuple[str, ...]] = {
    Check.NOTHING: (),
    # Calls instead of inline looks at a shadow that nobody keeps; static arrays get red zones, the stack has a page of its own.
    Check.BOUNDS: (
        "-fsanitize=kernel-address",
        "--param=asan-instrumentation-with-call-threshold=0",
        "--param=asan-stack=0",
        "--param=asan-globals=1",
        *_UNDEFINED,
    ),
    Check.RACES: ("-fsanitize=thread",),
}


def thread_code(order: int, variant: int) -> int:
    """Give the thread count that says an order and a variant: a GPU kernel has no use for the number itself."""
    return 1 + order + len(ORDERS) * variant


# Round the bundle's launcher: reads the code above, and tells the runtime what memory the call has.
_WRAPPER = """
#line 1 "EMULATION"
extern "C" void ytk_emulation_set_order(int order);
extern "C" void ytk_emulation_buffer(const char* kind, int index, const void* start, uint64_t size);
extern "C" void ytk_emulation_forget_buffers();
namespace {{
ytk_context ytk_emulated_context(const ytk_context* ctx) {{
  ytk_context own = *ctx;
  const int code = ctx->threads - 1;
  ytk_emulation_set_order(code % {orders});
  own.variant = code / {orders};
  own.threads = 1;
  return own;
}}
uint64_t ytk_emulated_bytes(const ytk_tensor& tensor) {{
  uint64_t bytes = 4;
  switch (tensor.dtype) {{
    case YTK_INT64: case YTK_FLOAT64: bytes = 8; break;
    case YTK_FLOAT16: case YTK_BFLOAT16: bytes = 2; break;
    case YTK_INT8: case YTK_UINT8: case YTK_BOOL: bytes = 1; break;
  }}
  for (int axis = 0; axis < tensor.rank; ++axis) bytes *= (uint64_t)tensor.dims[axis];
  return bytes;
}}
}}  // namespace
extern "C" int ytk_emulated_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {{
  const ytk_context own = ytk_emulated_context(ctx);
  ytk_emulation_forget_buffers();
  for (int k = 0; k < nin; ++k) ytk_emulation_buffer("input", k, in[k].data, ytk_emulated_bytes(in[k]));
  for (int k = 0; k < nout; ++k) ytk_emulation_buffer("output", k, out[k].data, ytk_emulated_bytes(out[k]));
  ytk_emulation_buffer("workspace", 0, own.workspace, own.workspace_bytes);
  return {launch}(&own, in, nin, out, nout);
}}
extern "C" int64_t ytk_emulated_workspace(const ytk_context* ctx, const ytk_tensor* in, int nin, const ytk_tensor* out, int nout) {{
  const ytk_context own = ytk_emulated_context(ctx);
  (void)own; (void)in; (void)nin; (void)out; (void)nout;
  return {asked};
}}
"""


def launcher_unit(bundle: KernelBundle) -> str:
    """Give the host half of an emulated candidate: the bundle's launcher, and the judge's entry points round it."""
    launcher = bundle.meta.launcher
    asked = f"{launcher.workspace}(&own, in, nin, out, nout)" if launcher.workspace else "0"
    wrapper = _WRAPPER.format(orders=len(ORDERS), launch=launcher.launch, asked=asked)
    own = msgspec.structs.replace(launcher, launch="ytk_emulated_launch", workspace="ytk_emulated_workspace")
    meta = msgspec.structs.replace(bundle.meta, launcher=own)
    return judged_unit(KernelBundle(header=bundle.header, source=bundle.source + wrapper, meta=meta))


def _directory() -> Path:
    return Path(str(resources.files("ytk_gaia.emulation")))


def device_flags(check: Check) -> list[str]:
    """Give the flags of the device half."""
    shim = str(_directory() / "include")
    return [*_COMMON, "-D__CUDACC__", "-DYTK_EMULATION", "-I", shim, "-I", str(include_dir()), *_INSTRUMENTED[check]]


def host_flags() -> list[str]:
    """Give the flags of the launcher's half."""
    return [*_COMMON, "-I", str(include_dir())]


def runtime_commands(directory: Path) -> list[list[str]]:
    """Give the commands that compile the runtime into ``directory``."""
    source = _directory()
    flags = ["-std=c++17", "-O2", "-fPIC", "-I", str(source / "include"), "-I", str(include_dir())]
    return [
        [compiler(), *flags, "-c", str(source / f"{name}.cpp"), "-o", str(directory / f"{name}.o")]
        for name in ("runtime", "checks")
    ]


def link_command(objects: Sequence[Path], library: Path, check: Check) -> list[str]:
    """Give the command that links objects to a library."""
    # No sanitizer's own library but the one that says what is undefined: the rest is in the runtime.
    libraries = ["-lubsan"] if check is Check.BOUNDS else []
    return [compiler(), "-shared", *map(str, objects), *libraries, "-Wl,--no-undefined", "-o", str(library)]


@dataclass(frozen=True)
class Emulator:
    """The compiled runtime, once for all candidates of an evaluation."""

    objects: tuple[Path, ...]
    mode: SandboxMode

    @classmethod
    def prepare(cls, directory: Path, mode: SandboxMode) -> Emulator:
        """Compile the runtime into ``directory``.

        Raises:
            ToolkitError: It does not compile here.
            NotAvailableError: No compiler.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for command in runtime_commands(directory):
            status, log = run_limited(wrap(command, _policy(directory), mode, env=child_mark()), COMPILE_LIMIT_S)
            if status != 0:
                msg = f"the emulation's runtime does not compile here: {log[:300]}"
                raise ToolkitError(msg, code="emulation_broken", hint="Report this with the compiler's version.")
        return cls(tuple(directory / f"{name}.o" for name in ("runtime", "checks")), mode)

    def build(self, bundle: KernelBundle, directory: Path, checks: Sequence[Check]) -> dict[Check, Built]:
        """Compile a candidate once per check into ``directory/<check>.so``.

        Args:
            bundle: A CUDA bundle; nothing in it is trusted.
            directory: Exists, belongs to this candidate alone.
            checks: What to look for; each makes a library of its own.

        Returns:
            A library per check, or why there is none.
        """
        started = time.monotonic()
        (directory / "launcher.cpp").write_text(launcher_unit(bundle), encoding="utf-8")
        (directory / "device.cpp").write_text(translation_unit(bundle), encoding="utf-8")
        host = directory / "launcher.o"
        unit = str(directory / "launcher.cpp")
        problem = self._run([[compiler(), *host_flags(), "-c", unit, "-o", str(host)]], directory)
        found = {}
        for check in checks:
            library = directory / f"{check}.so"
            source, device = directory / "device.cpp", directory / f"{check}.o"
            flags, link = device_flags(check), link_command([host, device, *self.objects], library, check)
            # In two steps: linked with its own flag, instrumented code would get the sanitizer's runtime beside ours.
            compile_ = [compiler(), *flags, "-c", str(source), "-o", str(device)]
            failed = problem or self._run([compile_, link], directory)
            seconds = time.monotonic() - started
            if failed is None and library.is_file() and not library.is_symlink():
                found[check] = Built(library, "", seconds)
            else:
                log, timed_out = failed or ("no library", False)
                found[check] = Built(None, log, seconds, timed_out=timed_out)
        return found

    def _run(self, commands: Sequence[Sequence[str]], directory: Path) -> tuple[str, bool] | None:
        """Run commands one after the other in one sandbox; give what failed and whether it ran past the limit, or None."""
        # Starting a sandbox costs as much as compiling a small kernel.
        command = ["/bin/sh", "-ec", "\n".join(map(shlex.join, commands))]
        policy = _policy(directory, *(path.parent for path in self.objects))
        status, log = run_limited(wrap(command, policy, self.mode, env=child_mark()), COMPILE_LIMIT_S)
        return None if status == 0 else (log or f"the compiler ended with {status}", status is None)


def _policy(directory: Path, *more: Path) -> SandboxPolicy:
    return SandboxPolicy(
        read_only=(include_dir(), _directory(), *(path for path in more if path != directory)),
        read_write=(directory,),
        memory_bytes=4 * _GIB,
        file_bytes=256 << 20,
        processes=32,
        cpu_s=COMPILE_LIMIT_S,
    )
