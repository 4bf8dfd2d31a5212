from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ytk_core import sandbox as sandboxes
from ytk_core.agent import tasks
from ytk_core.agent.files import task_directory
from ytk_core.errors import BoardError, CandidateError, FailureClass, ToolkitError, UserError, YtkError
from ytk_core.sandbox import SandboxPolicy

TESTS = Path(__file__).parents[3]
ENV = {"PYTHONPATH": str(TESTS)}
MIB = 1024 * 1024
WAIT_S = 240.0
"""For what comes at once on an idle machine; only a hang meets it."""
POLICY = SandboxPolicy()

needs_sandbox = pytest.mark.skipif(
    sandboxes.detect().kind == "none", reason=f"no sandbox here: {sandboxes.detect().reason}"
)


def run(name: str, workdir: Path, task: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    options.setdefault("wall_limit_s", WAIT_S)
    options.setdefault("log", lambda _text: None)
    options["env"] = {**ENV, **options.get("env", {})}
    return tasks.run_task_locally(f"fakes.child_tasks:{name}", task or {}, workdir, **options)


def failure(cls: type[YtkError], code: str, name: str, workdir: Path, *args: Any, **options: Any) -> YtkError:
    with pytest.raises(cls) as caught:
        run(name, workdir, *args, **options)
    assert caught.value.code == code, caught.value.message
    assert type(caught.value) is cls
    return caught.value


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


both = pytest.mark.parametrize("policy", [None, pytest.param(POLICY, marks=needs_sandbox)], ids=["trusted", "sandbox"])


@both
def test_result_log_and_place(tmp_path: Path, policy: SandboxPolicy | None) -> None:
    log: list[str] = []
    result = run("echo", tmp_path, {"a": [1, "é"], "path": tmp_path}, sandbox=policy, log=log.append)
    assert result["task"] == {"a": [1, "é"], "path": str(tmp_path)}
    assert result["workdir"] == result["cwd"] == str(tmp_path)
    assert result["nice"] == min(19, os.nice(0) + tasks.CHILD_NICE)
    assert "".join(log) == "hello from the child\nand from stderr\n"


@both
def test_environment_is_a_short_list(
    tmp_path: Path, policy: SandboxPolicy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YTK_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    env = run("environment", tmp_path, sandbox=policy, env={"EXTRA": "1"})
    assert "secret" not in env.values()
    assert (env["OMP_NUM_THREADS"], env["EXTRA"]) == ("3", "1")
    assert set(env) <= {*sandboxes._PASSED_ENV, *ENV, "EXTRA", "HOME", "TMPDIR", "USER", "LOGNAME", "YTK_TASK_TOKEN", "YTK_TASK_DIR",
        "PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PWD"}  # fmt: skip
    if policy is not None:
        assert env["HOME"] == "/tmp"


def test_files_in_the_workdir_shadow_no_module(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(9)")
    assert run("imports_from_cwd", tmp_path) == {"cwd_on_path": False}


@both
def test_a_tasks_own_error_keeps_its_words(tmp_path: Path, policy: SandboxPolicy | None) -> None:
    err = failure(UserError, "rank", "user_error", tmp_path, sandbox=policy)
    assert (err.message, err.hint) == ("rank 5 is too high", "Use rank 4.")


def test_untrusted_code_cannot_have_itself_retried(tmp_path: Path) -> None:
    failure(BoardError, "device_lost", "board_error", tmp_path)
    failure(CandidateError, "device_lost", "board_error", tmp_path, sandbox=POLICY)
    failure(CandidateError, "child_killed", "kill_self", tmp_path, {"signal": 9}, sandbox=POLICY)


def test_blame_is_the_callers_choice(tmp_path: Path) -> None:
    failure(UserError, "device_lost", "board_error", tmp_path, sandbox=POLICY, blame=FailureClass.YOURS)
    failure(CandidateError, "child_crashed", "crash", tmp_path, blame=FailureClass.CANDIDATES)


def test_a_bug_is_ours_with_a_traceback_in_the_log(tmp_path: Path) -> None:
    log: list[str] = []
    err = failure(ToolkitError, "internal", "bug", tmp_path, log=log.append)
    assert "IndexError" in err.message
    assert "Traceback" in "".join(log)


ENDINGS: list[tuple[str, dict[str, Any], str, type[YtkError]]] = [
    # task, argument, code, class where the task is trusted
    ("kill_self", {"signal": int(signal.SIGKILL)}, "child_killed", BoardError),
    ("kill_self", {"signal": int(signal.SIGTERM)}, "child_crashed", ToolkitError),
    ("crash", {}, "child_crashed", ToolkitError),
    ("exit_quietly", {"code": 0}, "no_result", ToolkitError),
    ("exit_quietly", {"code": 3}, "no_result", ToolkitError),
    ("garbage_result", {}, "bad_result", ToolkitError),
    ("garbage_error", {}, "bad_result", ToolkitError),
    ("fifo_result", {}, "bad_result", ToolkitError),
    ("daemonise", {}, "left_processes", ToolkitError),
]


@both
@pytest.mark.parametrize(("name", "task", "code", "cls"), ENDINGS)
def test_bad_endings(
    tmp_path: Path, policy: SandboxPolicy | None, name: str, task: dict[str, Any], code: str, cls: type[YtkError]
) -> None:
    failure(cls if policy is None else CandidateError, code, name, tmp_path, task, sandbox=policy)


def test_the_last_output_is_in_the_message(tmp_path: Path) -> None:
    assert "bye" in failure(ToolkitError, "no_result", "exit_quietly", tmp_path, {"code": 3}).message


@pytest.mark.parametrize("name", ["not_a_dict", "not_json"])
def test_results_that_are_no_json_object_are_ours(tmp_path: Path, name: str) -> None:
    failure(ToolkitError, "bad_result", name, tmp_path)


def test_a_result_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"key": "secret"}')
    workdir = tmp_path / "work"
    workdir.mkdir()
    err = failure(ToolkitError, "bad_result", "linked_result", workdir, {"target": str(secret)})
    assert "secret" not in err.message


@needs_sandbox
def test_links_that_an_untrusted_task_left_are_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    victim = target / "victim"
    victim.write_text("before")
    work = tmp_path / "work"
    work.mkdir()
    run("leave_links", work, {"names": ["task.json"], "target": str(victim)}, sandbox=POLICY)
    assert run("echo", work)["workdir"] == str(work)
    assert victim.read_text() == "before"
    run("leave_links", work, {"names": ["in", "side"], "target": str(target)}, sandbox=POLICY)
    failure(CandidateError, "bad_workdir", "echo", work, sandbox=POLICY)
    (work / "in").unlink()
    with pytest.raises(CandidateError):
        task_directory(work, "side")
    with pytest.raises(CandidateError):
        task_directory(work, "side/deeper")
    assert task_directory(work, "fine/deeper").is_dir()
    assert {path.name for path in target.iterdir()} == {"victim"}


def test_an_old_result_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    run("echo", tmp_path)
    failure(ToolkitError, "no_result", "exit_quietly", tmp_path, {"code": 0})


def test_a_full_disk_is_the_boards(tmp_path: Path) -> None:
    err = failure(BoardError, "disk_full", "disk_full", tmp_path)
    assert "engine.tgz" in err.message


@pytest.mark.parametrize("ref", ["fakes.child_tasks", "fakes.child_tasks:nothing", "fakes.child_tasks:SIGKILL"])
def test_bad_references(tmp_path: Path, ref: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        tasks.run_task_locally(ref, {}, tmp_path, env=ENV, log=lambda _text: None)
    assert caught.value.code == "bad_task_ref"


@both
def test_wall_limit_ends_the_tree(tmp_path: Path, policy: SandboxPolicy | None) -> None:
    mark = tmp_path / "pids"
    cls = UserError if policy is None else CandidateError
    limit_s = 1.5
    while not mark.exists():  # a busy machine may not even have started both processes within the first limit
        failure(cls, "wall_limit", "burn", tmp_path, {"mark": str(mark)}, sandbox=policy, wall_limit_s=limit_s)
        limit_s *= 4
    if policy is None:  # inside the sandbox they have other numbers; the next test counts there
        assert not any(alive(pid) for pid in json.loads(mark.read_text()))


@needs_sandbox
def test_nothing_of_a_sandbox_survives_its_end(tmp_path: Path) -> None:
    failure(CandidateError, "wall_limit", "burn", tmp_path, sandbox=POLICY, wall_limit_s=1)
    inside = [pid for pid in _process_ids() if _cwd(pid) == str(tmp_path)]
    assert inside == []


def _process_ids() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]


def _cwd(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def test_a_daemon_of_a_trusted_task_is_killed(tmp_path: Path) -> None:
    failure(ToolkitError, "left_processes", "daemonise", tmp_path, {"close": True})
    assert not alive(int((tmp_path / "daemon.pid").read_text()))


def test_a_helper_process_is_ended_without_fuss(tmp_path: Path) -> None:
    assert run("pool", tmp_path) == {"fine": True}  # long before the helper's ten minutes are over
    assert not alive(int((tmp_path / "helper.pid").read_text()))


@needs_sandbox
def test_what_a_sandbox_stops(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    other_job = tmp_path / "work" / "other" / "in.txt"
    workdir = tmp_path / "work" / "mine"
    for path in (outside, other_job.parent, workdir / "in"):
        path.mkdir(parents=True)
    other_job.write_text("other job's")
    home_file = Path.home() / f".ytk-test-{os.getpid()}"
    home_file.write_text("home")
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            found = run(
                "probe",
                workdir,
                {
                    "port": server.getsockname()[1],
                    "unreadable": [str(home_file), str(other_job), "/etc/passwd", "/etc/shadow"],
                    "unwritable": [
                        str(outside / "x"),
                        "/usr/x",
                        f"{sys.prefix}/x",
                        str(workdir / "in/x"),
                        "/x",
                        "/dev/x",
                    ],
                    "pid": os.getpid(),
                },
                sandbox=SandboxPolicy(tmp_bytes=16 * MIB),
            )
        finally:
            home_file.unlink()
    allowed = {name: found.pop(name) for name in ("workdir", "tmp")}
    listings = {name: found.pop(name) for name in list(found) if name.startswith("list")}
    count = int(found.pop("processes"))
    assert allowed == {"workdir": "1", "tmp": "1"}
    assert count <= 4
    assert {name: text for name, text in found.items() if not text.startswith("refused")} == {}
    assert home_file.name not in listings["list0"]
    assert "refused" in listings["list1"]
    assert (workdir / "mine.txt").exists()
    assert not (outside / "x").exists()


def test_the_probe_sees_a_missing_sandbox(tmp_path: Path) -> None:
    """The probe itself has to be able to fail: without a sandbox it gets what it should not."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    workdir = tmp_path / "work"
    workdir.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = {
            "port": server.getsockname()[1],
            "unreadable": [str(secret)],
            "unwritable": [str(tmp_path / "x")],
            "pid": os.getpid(),
            "harmless": True,
        }
        found = run("probe", workdir, task)
    assert found["connect"] == "None"
    assert found["read0"] == "'s'"
    assert found["write0"] == "1"
    assert found["signal"] == "None"


@needs_sandbox
class TestLimits:
    def test_memory_of_one_process(self, tmp_path: Path) -> None:
        policy = SandboxPolicy(memory_bytes=512 * MIB)
        assert run("allocate", tmp_path, {"bytes": 64 * MIB}, sandbox=policy) == {"size": 64 * MIB}
        failure(CandidateError, "out_of_memory", "allocate", tmp_path, {"bytes": 4096 * MIB}, sandbox=policy)

    def test_memory_of_all_processes(self, tmp_path: Path) -> None:
        policy = SandboxPolicy(memory_bytes=200 * MIB)
        task = {"bytes": 60 * MIB, "count": 4}
        failure(CandidateError, "memory_limit", "many_allocate", tmp_path, task, sandbox=policy)

    def test_number_of_processes(self, tmp_path: Path) -> None:
        policy = SandboxPolicy(processes=16)
        task = {"count": 64}
        # The kernel refuses where it counts (not for root), else the watch ends the task: one code for both.
        failure(CandidateError, "process_limit", "fork_many", tmp_path, task, sandbox=policy)

    def test_size_of_one_file(self, tmp_path: Path) -> None:
        policy = SandboxPolicy(file_bytes=MIB)
        assert run("write_files", tmp_path, {"count": 3, "bytes": MIB}, sandbox=policy) == {"count": 3}
        failure(CandidateError, "file_limit", "write_files", tmp_path, {"count": 1, "bytes": 2 * MIB}, sandbox=policy)
        assert (tmp_path / "block0").stat().st_size <= MIB

    def test_size_of_all_files(self, tmp_path: Path) -> None:
        policy = SandboxPolicy(disk_bytes=4 * MIB)
        task = {"count": 16, "bytes": MIB, "stay_s": 30}
        failure(CandidateError, "disk_limit", "write_files", tmp_path, task, sandbox=policy)

    def test_processor_seconds(self, tmp_path: Path) -> None:
        failure(CandidateError, "cpu_limit", "spin", tmp_path, sandbox=SandboxPolicy(cpu_s=1))


def test_progress_is_no_log_text(tmp_path: Path) -> None:
    log: list[bytes] = []
    progress: list[tuple[float, str]] = []

    async def go() -> None:
        await tasks.run_task(
            "fakes.child_tasks:progressing", {}, tmp_path, sandbox=None, mode="optional", env=ENV,
            log=log.append, progress=lambda fraction, note: progress.append((fraction, note)),
        )  # fmt: skip

    asyncio.run(go())
    assert b"".join(log) == b"text between\n"
    assert progress == [(0.25, "first"), (1.0, "second")]


async def test_cancelling_kills_the_child(tmp_path: Path) -> None:
    burning = asyncio.Event()
    mark = tmp_path / "pids"
    work = asyncio.create_task(
        tasks.run_task(
            "fakes.child_tasks:burn",
            {"mark": str(mark)},
            tmp_path,
            sandbox=None,
            mode="optional",
            env=ENV,
            log=lambda _chunk: burning.set(),
            progress=lambda _fraction, _note: None,
        )
    )
    async with asyncio.timeout(WAIT_S):
        await burning.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    pids = json.loads(mark.read_text())
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


async def test_inside_a_running_loop(tmp_path: Path) -> None:
    assert run("echo", tmp_path)["workdir"] == str(tmp_path)


@both
def test_a_child_dies_with_its_parent(tmp_path: Path, policy: SandboxPolicy | None) -> None:
    import subprocess

    mark = tmp_path / "pids"
    code = (
        "import sys; from pathlib import Path; from ytk_core.agent import tasks; from ytk_core.sandbox import SandboxPolicy\n"
        f"tasks.run_task_locally('fakes.child_tasks:burn', {{'mark': {str(mark)!r}}}, Path({str(tmp_path)!r}), "
        f"sandbox={'None' if policy is None else 'SandboxPolicy()'}, env={ENV!r}, log=lambda t: print(t, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, **ENV}) as parent:
        assert parent.stdout is not None
        assert b"burning" in parent.stdout.readline()
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        left = [pid for pid in _process_ids() if _cwd(pid) == str(tmp_path) and alive(int(pid))]
        # Without a process namespace only the child itself is bound to its parent.
        if policy is None:
            left = [pid for pid in left if int(pid) == json.loads(mark.read_text())[0]]
        if not left:
            break
        time.sleep(0.02)
    assert left == []
    if policy is None:
        os.kill(json.loads(mark.read_text())[1], signal.SIGKILL)


async def test_cancelling_again_and_again_waits_for_the_childs_end(tmp_path: Path) -> None:
    """A controller repeats its verdict with each heartbeat."""
    burning = asyncio.Event()
    mark = tmp_path / "pids"
    work = asyncio.create_task(
        tasks.run_task(
            "fakes.child_tasks:burn",
            {"mark": str(mark)},
            tmp_path,
            sandbox=None,
            mode="optional",
            env=ENV,
            log=lambda _chunk: burning.set(),
            progress=lambda _fraction, _note: None,
        )
    )
    async with asyncio.timeout(WAIT_S):
        await burning.wait()
        while not work.done():
            work.cancel()
            await asyncio.sleep(0)
    assert work.cancelled()
    assert not any(alive(pid) for pid in json.loads(mark.read_text()))
