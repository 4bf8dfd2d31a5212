"""Compiles a candidate in a sandbox, with the flags that Forge will use."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ytk_core.abi import include_dir
from ytk_core.agent.processes import TOKEN_VARIABLE
from ytk_core.archspec import ArchSpec
from ytk_core.cpu_build import cxx_flags
from ytk_core.errors import NotAvailableError
from ytk_core.formats.kernel_bundle import KernelBundle, translation_unit
from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap
from ytk_gaia.evaluator.compiled import Compiled, compiled_key

COMPILE_LIMIT_S = 120.0
_GIB = 1 << 30
_LOG_BYTES = 4000

# The judge's own entry points, round the candidate's. A fault inside the arena is reported as "fault <offset>" on the log
# descriptor before the process dies: the address says whether a neighbour was touched or an input written.
_ENTRY = """\
#line 1 "JUDGE"
#include <signal.h>
#include <unistd.h>
namespace {{
char* ytk_gaia_base = nullptr;
uint64_t ytk_gaia_size = 0;
int ytk_gaia_log = 2;
void ytk_gaia_fault(int number, siginfo_t* info, void*) {{
  const uint64_t offset = (uint64_t)((char*)info->si_addr - ytk_gaia_base);
  if ((char*)info->si_addr >= ytk_gaia_base && offset < ytk_gaia_size) {{
    char text[48] = "\\nytk-fault ";
    int at = 11;
    char digits[24];
    int count = 0;
    uint64_t rest = offset;
    do digits[count++] = (char)('0' + rest % 10); while (rest /= 10);
    while (count) text[at++] = digits[--count];
    text[at++] = '\\n';
    (void)!write(ytk_gaia_log, text, (size_t)at);
  }}
  raise(number);  // for good: SA_RESETHAND
}}
}}  // namespace
extern "C" __attribute__((visibility("default"))) void ytk_gaia_watch(void* base, uint64_t size, int log) {{
  ytk_gaia_base = (char*)base;
  ytk_gaia_size = size;
  ytk_gaia_log = log;
  struct sigaction action = {{}};
  action.sa_sigaction = ytk_gaia_fault;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}}
extern "C" __attribute__((visibility("default"))) int ytk_gaia_entry(
    const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {{
  return {launch}(ctx, in, nin, out, nout);
}}
extern "C" __attribute__((visibility("default"))) int64_t ytk_gaia_workspace(
    const ytk_context* ctx, const ytk_tensor* in, int nin, const ytk_tensor* out, int nout) {{
  (void)ctx; (void)in; (void)nin; (void)out; (void)nout;
  const int64_t asked = {asked}, fixed = {fixed};
  return asked < 0 || asked > fixed ? asked : fixed;
}}
"""


@dataclass(frozen=True)
class Built:
    """A compiled candidate, or why there is none (``library`` None)."""

    library: Path | None
    log: str
    seconds: float
    timed_out: bool = False


@functools.cache
def compiler() -> str:
    """Give the C++ compiler.

    Raises:
        NotAvailableError: There is none.
    """
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        msg = "no C++ compiler (g++) on this machine"
        raise NotAvailableError(msg, code="no_compiler", hint="Install g++ on the eval worker.")
    return found


@functools.cache
def compiler_version() -> str:
    """Give the compiler's first line about itself."""
    done = subprocess.run([compiler(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.partition("\n")[0]


def judged_unit(bundle: KernelBundle) -> str:
    """Give the text that is compiled: the bundle's unit and the judge's entry points."""
    launcher = bundle.meta.launcher
    # As Forge's plugin does: the function's answer, but no less than the fixed figure.
    asked = f"{launcher.workspace}(ctx, in, nin, out, nout)" if launcher.workspace else "0"
    return translation_unit(bundle) + _ENTRY.format(
        launch=launcher.launch, asked=asked, fixed=launcher.fixed_workspace_bytes
    )


def child_mark() -> dict[str, str]:
    """Give the mark by which the agent finds the processes of a job that it ends, where no sandbox ends them."""
    return {TOKEN_VARIABLE: os.environ[TOKEN_VARIABLE]} if TOKEN_VARIABLE in os.environ else {}


def run_limited(argv: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Run a command; give its exit status (None: it ran past the limit) and the end of what it printed."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        status: int | None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(process)
        return status, tail(log.fileno())


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, started as leader of its session, with everything in its group."""
    with contextlib.suppress(ProcessLookupError):  # all gone
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(descriptor: int) -> str:
    """Give the end of a log file as text."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace").strip()


def build(
    bundle: KernelBundle, arch: ArchSpec, directory: Path, mode: SandboxMode, compiled: Compiled | None = None
) -> Built:
    """Compile a candidate into ``directory/kernel.so``.

    Args:
        bundle: Parsed; nothing in it is trusted.
        arch: What to compile for.
        directory: Exists, belongs to this candidate alone.
        mode: Whether a sandbox is required.
        compiled: Libraries that were compiled before; None: none are kept.

    Raises:
        UserError: A compile flag of the bundle is not allowed, or the arch spec is no CPU.
        NotAvailableError: No compiler.
        BoardError: No sandbox where one is required.
    """
    flags = cxx_flags(arch, bundle.meta.compile_flags)
    source, library = directory / "kernel.cpp", directory / "kernel.so"
    unit = judged_unit(bundle)
    key = compiled_key(unit, flags, compiler_version(), sorted(include_dir().glob("*.h"))) if compiled else ""
    if compiled is not None and compiled.take(key, library):
        return Built(library, "", 0.0)
    source.write_text(unit, encoding="utf-8")
    argv = [compiler(), *flags, "-I", str(include_dir()), str(source), "-o", str(library)]
    policy = SandboxPolicy(
        read_only=(include_dir(),),
        read_write=(directory,),
        memory_bytes=4 * _GIB,
        file_bytes=256 << 20,
        processes=32,
        cpu_s=COMPILE_LIMIT_S,
    )
    started = time.monotonic()
    status, log = run_limited(wrap(argv, policy, mode, env=child_mark()), COMPILE_LIMIT_S)
    seconds = time.monotonic() - started
    if status == 0 and library.is_file() and not library.is_symlink():
        if compiled is not None:
            compiled.keep(key, library)
        return Built(library, log, seconds)
    return Built(None, log or f"the compiler ended with {status}", seconds, timed_out=status is None)
