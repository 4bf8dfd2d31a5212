"""A stand-in for the driver's ``libcuda.so.1`` of a toolchain's machine: the driver comes with the board, never with us."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ytk_core.confined import run_confined
from ytk_core.errors import ToolkitError
from ytk_core.sandbox import SandboxMode
from ytk_forge.render import TEMPLATE_DIR
from ytk_forge.toolchain import Compiler

SONAME = "libcuda.so.1"
SOURCE = TEMPLATE_DIR / "libcuda_stub.c"
_LIMIT_S = 60.0


@functools.lru_cache(maxsize=8)
def driver_stub(sysroot: str, compiler: Compiler, mode: SandboxMode) -> bytes:
    """Compile the stand-in, once in a process.

    Raises:
        ToolkitError: It does not compile.
        BoardError: No sandbox works and ``mode`` is ``required``.
    """
    with tempfile.TemporaryDirectory(prefix="ytk-stub-") as directory:
        workdir = Path(directory)
        (workdir / "stub.c").write_bytes(SOURCE.read_bytes())
        flags = [f"--sysroot={sysroot}"] if sysroot else []
        # No library of its own: nothing but the names matters.
        command = [
            compiler.path,
            *flags,
            "-x",
            "c",
            "-shared",
            "-fPIC",
            "-nostdlib",
            f"-Wl,-soname,{SONAME}",
            "stub.c",
            "-o",
            SONAME,
        ]
        read_only = [Path(sysroot)] if sysroot else []
        done = run_confined(command, workdir, mode=mode, wall_limit_s=_LIMIT_S, read_only=read_only)
        if done.returncode:
            msg = (
                f"the stand-in for {SONAME} does not compile: {(done.output.strip().splitlines() or ['no message'])[0]}"
            )
            raise ToolkitError(
                msg, code="stub_does_not_compile", hint="Report this with the output of `ytk-forge toolchains`."
            )
        return (workdir / SONAME).read_bytes()
