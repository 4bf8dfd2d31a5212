"""nvcc of a CUDA toolkit (or of a DRIVE SDK): for targets whose device compiler is in no package."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ytk_core.confined import run_confined
from ytk_core.cuda.result import COMPILE_LIMIT_S, DeviceResult, compile_error, too_slow
from ytk_core.errors import BoardError, CandidateError, NotAvailableError, ToolkitError
from ytk_core.sandbox import SandboxMode
from ytk_forge.toolchain import DeviceCode


class Nvcc(msgspec.Struct, frozen=True, kw_only=True):
    """An nvcc that was found and asked."""

    version: str
    path: str
    root: str
    """The toolkit that it belongs to; the sandbox lets nvcc read it."""
    include_dir: str
    build: str

    @property
    def banner(self) -> str:
        """For manifests, logs and the cache's key."""
        return f"nvcc {self.version} ({self.build})"


def find_nvcc(device: DeviceCode) -> Nvcc:
    """Give the nvcc that a toolchain names.

    Raises:
        NotAvailableError: ``nvcc_missing``, ``nvcc_broken``, or ``nvcc_wrong_version``; the hint says what to set.
    """
    hint = f"{device.install}. device.path of the toolchain names the nvcc to use."
    wanted = device.path or "nvcc"
    path = shutil.which(wanted)
    if path is None:
        msg = f"no nvcc: {wanted} is not on PATH"
        raise NotAvailableError(msg, code="nvcc_missing", hint=hint)
    try:
        version, build, root, include = _ask(path, Path(path).stat().st_mtime_ns)
    except (OSError, subprocess.SubprocessError, ValueError) as err:
        msg = f"{path} does not work: {err}"
        raise NotAvailableError(msg, code="nvcc_broken", hint=hint) from err
    if version != device.version:
        msg = f"{path} is of CUDA {version}, wanted {device.version}"
        raise NotAvailableError(msg, code="nvcc_wrong_version", hint=hint)
    return Nvcc(version=version, path=path, root=root, include_dir=include, build=build)


@functools.lru_cache(maxsize=8)
def _ask(path: str, _mtime_ns: int) -> tuple[str, str, str, str]:
    """Give version, build, toolkit directory and include directory; asked again when the file changes."""

    def say(*arguments: str) -> str:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout + done.stderr

    text = say("--version")
    release = re.search(r"release (\d+\.\d+), V(\S+)", text)
    # A dry run prints where it looks, also when nvcc is a link or a script.
    plan = say("--dryrun", "-cubin", "-x", "cu", "/dev/null")
    top = re.search(r"^#\$ TOP=(.+)$", plan, re.MULTILINE)
    include = re.search(r'^#\$ INCLUDES="-I([^"]+)"', plan, re.MULTILINE)
    if release is None or top is None or include is None:
        msg = f"its answer is not nvcc's: {text[:80]!r}"
        raise ValueError(msg)
    return release[1], release[2], str(Path(top[1].strip()).resolve()), str(Path(include[1]).resolve())


def compile_with_nvcc(
    nvcc: Nvcc, flags: Sequence[str], workdir: Path, *, mode: SandboxMode, log: Callable[[str], None]
) -> DeviceResult:
    """Compile ``kernel.cpp`` in ``workdir`` as device code into ``device.cubin``, in the sandbox.

    Raises:
        CandidateError: The text does not compile ("device_compile_error"), or takes too long ("compile_timeout").
        BoardError: The compiler was killed.
        ToolkitError: The compiler gave no cubin.
    """
    log(f"$ nvcc {' '.join(flags)} kernel.cpp\n")
    done = run_confined(
        # Constexpr functions of the shared text need no __device__, as with NVRTC.
        [
            nvcc.path,
            "-cubin",
            *flags,
            "--expt-relaxed-constexpr",
            "-Xptxas=-v",
            "-x",
            "cu",
            "kernel.cpp",
            "-o",
            "device.cubin",
        ],
        workdir,
        mode=mode,
        wall_limit_s=COMPILE_LIMIT_S,
        read_only=[Path(nvcc.root), Path(nvcc.include_dir)],
    )
    log(done.output)
    if done.timed_out:
        raise too_slow()
    if done.returncode < 0:
        msg = f"nvcc was ended by signal {-done.returncode}"
        raise BoardError(
            msg, code="compiler_killed", hint="The machine ran out of memory: give Forge more, or fewer slots."
        )
    if done.returncode:
        error: CandidateError = compile_error(done.output)
        raise error
    cubin = workdir / "device.cubin"
    if cubin.is_symlink() or not cubin.is_file():
        msg = f"{nvcc.banner} reported success and wrote no cubin"
        raise ToolkitError(msg, hint="Report this with the build log.")
    return DeviceResult(cubin=cubin.read_bytes(), log=done.output)
