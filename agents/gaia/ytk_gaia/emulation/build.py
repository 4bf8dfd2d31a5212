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
from ytk_core.formats.plugin_meta import FORMAT_NUMBER
from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap
from ytk_gaia.evaluator.build import COMPILE_LIMIT_S, Built, child_mark, compiler, judged_unit, run_limited

ORDERS = ("forward", "backward", "shuffled")
"""In which the threads of a block, and the blocks, get their turn; the runtime knows them by number."""
RUNTIME_UNITS = ("runtime", "checks", "tensor_cores")
FORMATS_DIR = Path(str(resources.files("ytk_gaia") / "cuda"))
"""Where ``ytk_formats.h`` is."""
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
#include "ytk_formats.h"
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
const int32_t ytk_emulated_formats[][{tensors}] = {{{formats}}};
// A tensor as the variant takes it: the judge's own memory, or a copy in the variant's layout.
struct ytk_emulated_tensor {{
  ytk_tensor seen;
  std::vector<char> copy;
  ytk_emulated_tensor(const ytk_tensor& linear, int32_t format, const char* kind, int index) : seen(linear) {{
    seen.format = format;
    const uint64_t size = ytk_formats::room(seen) * ytk_formats::item_bytes(seen);
    if (format != YTK_LINEAR) {{
      copy.resize(size + 64);
      seen.data = (void*)(((uintptr_t)copy.data() + 63) / 64 * 64);
      ytk_formats::copy(seen, (char*)linear.data, (char*)seen.data, false);
    }}
    ytk_emulation_buffer(kind, index, seen.data, size);
  }}
}};
}}  // namespace
extern "C" int ytk_emulated_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {{
  const ytk_context own = ytk_emulated_context(ctx);
  ytk_emulation_forget_buffers();
  if (own.variant < 0 || own.variant >= {variants} || nin + nout > {tensors}) return YTK_BAD_VARIANT;
  const int32_t* const formats = ytk_emulated_formats[own.variant];
  std::vector<ytk_emulated_tensor> tensors;
  tensors.reserve((size_t)(nin + nout));
  for (int k = 0; k < nin; ++k) tensors.emplace_back(in[k], formats[k], "input", k);
  for (int k = 0; k < nout; ++k) tensors.emplace_back(out[k], formats[nin + k], "output", k);
  ytk_emulation_buffer("workspace", 0, own.workspace, own.workspace_bytes);
  std::vector<ytk_tensor> seen;
  for (const ytk_emulated_tensor& tensor : tensors) seen.push_back(tensor.seen);
  const int status = {launch}(&own, seen.data(), nin, seen.data() + nin, nout);
  for (int k = 0; k < nout; ++k) {{
    const ytk_emulated_tensor& tensor = tensors[(size_t)(nin + k)];
    if (!tensor.copy.empty()) ytk_formats::copy(tensor.seen, (char*)out[k].data, (char*)tensor.seen.data, true);
  }}
  return status;
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
    rows = [[FORMAT_NUMBER[t.format] for t in (*v.inputs, *v.outputs)] for v in bundle.meta.variants]
    wrapper = _WRAPPER.format(
        orders=len(ORDERS),
        launch=launcher.launch,
        asked=asked,
        variants=len(rows),
        tensors=len(rows[0]),
        formats=", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows),
    )
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
    return [*_COMMON, "-I", str(include_dir()), "-I", str(FORMATS_DIR)]


def runtime_commands(directory: Path) -> list[list[str]]:
    """Give the commands that compile the runtime into ``directory``."""
    source = _directory()
    flags = ["-std=c++17", "-O2", "-fPIC", "-I", str(source / "include"), "-I", str(include_dir())]
    return [
        [compiler(), *flags, "-c", str(source / f"{name}.cpp"), "-o", str(directory / f"{name}.o")]
        for name in RUNTIME_UNITS
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
        return cls(tuple(directory / f"{name}.o" for name in RUNTIME_UNITS), mode)

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
        read_only=(include_dir(), _directory(), FORMATS_DIR, *(path for path in more if path != directory)),
        read_write=(directory,),
        memory_bytes=4 * _GIB,
        file_bytes=256 << 20,
        processes=32,
        cpu_s=COMPILE_LIMIT_S,
    )
