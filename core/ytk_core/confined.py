"""Run a compiler or a probe on a submitter's text or code: sandboxed, limited, and ended as a whole."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ytk_core.agent.processes import TOKEN_VARIABLE, kill_group
from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap

_MIB = 1024 * 1024
MAX_OUTPUT_BYTES = 4 * _MIB
"""What is kept of a program's output: a template error can be gigabytes."""

# cc1plus needs 200-600 MiB for an unrolled kernel; more than this is a text made to exhaust the machine.
MEMORY_BYTES = 4096 * _MIB
PROCESSES = 64


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a confined program ended."""

    returncode: int
    """Negative: ended by that signal."""
    output: str
    """stdout and stderr together, cut at ``MAX_OUTPUT_BYTES``."""
    timed_out: bool


def run_confined(
    argv: Sequence[str],
    workdir: Path,
    *,
    mode: SandboxMode,
    wall_limit_s: float,
    read_only: Sequence[Path] = (),
) -> Finished:
    """Run a program in ``workdir``, the only place it may write.

    Raises:
        BoardError: No sandbox works and ``mode`` is ``required``.
    """
    policy = SandboxPolicy(
        read_only=tuple(read_only),
        read_write=(workdir,),
        memory_bytes=MEMORY_BYTES,
        file_bytes=256 * _MIB,
        processes=PROCESSES,
        cpu_s=wall_limit_s,
    )
    # SOURCE_DATE_EPOCH: __DATE__ and __TIME__ must not make two builds differ.
    # TMPDIR: a private /tmp lives in memory and is small; a compiler's temporary files are not.
    env = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0", "TMPDIR": str(workdir)}
    if TOKEN_VARIABLE in os.environ:
        # Where no sandbox works, the mark by which the agent finds a cancelled job's processes.
        env[TOKEN_VARIABLE] = os.environ[TOKEN_VARIABLE]
    command = wrap(argv, policy, mode, env=env, cwd=workdir)
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        timed_out = False
        try:
            returncode = child.wait(wall_limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            returncode = _end(child)
        except BaseException:
            _end(child)
            raise
        output.seek(0)
        text = output.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace")
    # Inside a namespace the first process reports a signal of its child the way a shell does.
    if returncode > 128:
        returncode = 128 - returncode
    return Finished(returncode=returncode, output=text, timed_out=timed_out)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Kill the whole session of a child and wait for the child."""
    kill_group(child.pid)
    return child.wait()
