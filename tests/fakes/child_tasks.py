"""Task functions that end in every way a task can. Run in children; imported by reference only."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ytk_core.agent.tasks import report_progress
from ytk_core.errors import BoardError, CandidateError, UserError


def echo(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    print("hello from the child")
    print("and from stderr", file=sys.stderr)
    return {"task": task, "workdir": str(workdir), "cwd": str(Path.cwd()), "nice": os.nice(0)}


def environment(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    return dict(os.environ)


def user_error(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    raise UserError("rank 5 is too high", code="rank", hint="Use rank 4.")


def board_error(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    raise BoardError("the device is gone", code="device_lost")


def candidate_error(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    raise CandidateError("wrong value")


def bug(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    return {"x": list(_task)[7]}


def not_a_dict(_task: dict[str, Any], _workdir: Path) -> Any:
    return [1]


def not_json(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    return {"x": object()}


def garbage_result(_task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    (workdir / "result.json").write_text('{"half": ')
    os._exit(0)


def garbage_error(_task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    (workdir / "error.json").write_text('{"failure_class": "nobody\'s"}')
    os._exit(1)


def linked_result(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    (workdir / "result.json").symlink_to(task["target"])
    os._exit(0)


def fifo_result(_task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    os.mkfifo(workdir / "result.json")
    os._exit(0)


def exit_quietly(task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    print("bye")
    sys.stdout.flush()
    os._exit(task["code"])


def kill_self(task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    os.kill(os.getpid(), task["signal"])
    time.sleep(600)
    return {}


def crash(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    ctypes.string_at(0)
    return {}


def disk_full(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    raise OSError(28, "No space left on device", "out/engine.tgz")


def allocate(task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    block = bytearray(task["bytes"])
    return {"size": len(block)}


def many_allocate(task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    code = f"b = bytearray(b'x' * {task['bytes']}); print(len(b), flush=True); import time; time.sleep(600)"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(task["count"])]
    return {"codes": [child.wait() for child in children]}


def fork_many(task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(task["count"])]
    return {"codes": [child.wait() for child in children]}


def write_files(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    for number in range(task["count"]):
        (workdir / f"block{number}").write_bytes(os.urandom(1024) * (task["bytes"] // 1024))
    time.sleep(task.get("stay_s", 0))
    return {"count": task["count"]}


def burn(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Hold the GIL and a processor, with a grandchild in a session of its own doing the same."""
    # Bounded, so that a test that fails before its clean-up leaves no processor burning for ever.
    code = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    grandchild = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    if task.get("mark"):
        Path(task["mark"]).write_text(json.dumps([os.getpid(), grandchild.pid]))
    print("burning", flush=True)
    end = time.monotonic() + task.get("seconds", 600)
    while time.monotonic() < end:
        sum(range(100_000))
    grandchild.kill()
    grandchild.wait()
    return {"burnt": True}


def daemonise(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Double fork; returns as if nothing were."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            for descriptor in (1, 2) if task.get("close") else ():
                os.close(descriptor)
            time.sleep(600)
        os._exit(0)
    os.wait()
    (workdir / "daemon.pid").write_bytes(os.read(reader, 20))
    return {"fine": True}


def pool(_task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """A helper process left running, in a session of its own, as compile pools do."""
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (workdir / "helper.pid").write_text(str(helper.pid))
    sys.modules[__name__].__dict__["_kept"] = helper
    return {"fine": True}


def spam(task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    line = "x" * 99 + "\n"
    for _ in range(task["lines"]):
        sys.stdout.write(line)
    return {}


def progressing(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    report_progress(0.25, "first")
    print("text between")
    report_progress(7.0, "second")
    sys.stdout.buffer.write(b"\x1enot json\n")
    return {}


def probe(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Try everything a sandbox should stop; gives what happened per attempt."""
    found: dict[str, Any] = {}

    def attempt(name: str, action: Any) -> None:
        try:
            found[name] = repr(action())
        except Exception as err:  # noqa: BLE001  (every kind of refusal is an answer)
            found[name] = f"refused: {type(err).__name__}"

    attempt("connect", lambda: socket.create_connection(("127.0.0.1", task["port"]), timeout=2).close())
    for number, path in enumerate(task["unreadable"]):
        attempt(f"read{number}", lambda path=path: Path(path).read_text())
        attempt(f"list{number}", lambda path=path: sorted(str(each) for each in Path(path).parent.iterdir()))
    for number, path in enumerate(task["unwritable"]):
        attempt(f"write{number}", lambda path=path: Path(path).write_text("x"))
    attempt("signal", lambda: os.kill(task["pid"], 0))
    attempt("processes", lambda: len([each for each in Path("/proc").iterdir() if each.name.isdigit()]))
    attempt("workdir", lambda: (workdir / "mine.txt").write_text("x"))
    if task.get("harmless"):
        return found
    attempt("userns", lambda: subprocess.run(["unshare", "-r", "true"], check=True, capture_output=True))
    # On a directory of the job's own: where the sandbox fails, this attempt succeeds on the real machine.
    target = workdir / "mnt"
    target.mkdir()
    attempt("mount", lambda: subprocess.run(["mount", "-t", "tmpfs", "x", target], check=True, capture_output=True))
    subprocess.run(["umount", target], check=False, capture_output=True)
    attempt("tmp", lambda: _write_and_remove(Path("/tmp/ytk-probe"), 1))
    attempt("fill_tmp", lambda: _write_and_remove(Path("/tmp/ytk-probe"), 32 * 1024 * 1024))
    attempt("fill_shm", lambda: _write_and_remove(Path("/dev/shm/ytk-probe"), 32 * 1024 * 1024))
    return found


def _write_and_remove(path: Path, size_bytes: int) -> int:
    try:
        return path.write_bytes(bytes(size_bytes))
    finally:
        path.unlink(missing_ok=True)


def leave_links(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Prepare traps for whoever works in this directory afterwards."""
    for name in task["names"]:
        if name == "task.json":
            (workdir / name).unlink()
        (workdir / name).symlink_to(task["target"])
    return {}


def imports_from_cwd(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    return {"cwd_on_path": str(Path.cwd()) in sys.path or "" in sys.path}


def spin(_task: dict[str, Any], _workdir: Path) -> dict[str, Any]:
    while True:
        sum(range(100_000))


SIGKILL = int(signal.SIGKILL)
