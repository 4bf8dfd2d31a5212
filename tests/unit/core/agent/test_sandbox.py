from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ytk_core import sandbox
from ytk_core.errors import BoardError, UserError
from ytk_core.sandbox import SandboxPolicy, SandboxStatus, wrap

NONE = SandboxStatus("none", "no user namespaces")

needs_sandbox = pytest.mark.skipif(sandbox.detect().kind == "none", reason="no sandbox here")


def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, **options)


def test_it_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "detect", lambda: NONE)
    with pytest.raises(BoardError) as caught:
        wrap(["true"], SandboxPolicy())
    assert caught.value.code == "no_sandbox"
    assert "no user namespaces" in caught.value.message
    assert "--sandbox optional" in caught.value.hint


def test_optional_still_limits_and_clears_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "detect", lambda: NONE)
    monkeypatch.setenv("YTK_API_KEY", "secret")
    code = "import os, resource; print(os.environ.get('YTK_API_KEY'), resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
    done = run(wrap([sys.executable, "-c", code], SandboxPolicy(file_bytes=12345), "optional"))
    assert done.stdout.split() == ["None", "12345"]


def test_a_bwrap_that_does_not_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox, "find_bwrap", lambda: str(broken))
    sandbox.detect.cache_clear()
    try:
        status = sandbox.detect()
        assert status.kind == "none"
        assert "Permission denied" in status.reason
        monkeypatch.setattr(sandbox, "find_bwrap", lambda: None)
        sandbox.detect.cache_clear()
        assert "install" in sandbox.detect().reason
    finally:
        sandbox.detect.cache_clear()


@needs_sandbox
def test_paths_have_to_exist(tmp_path: Path) -> None:
    for field in ("read_only", "read_write", "devices"):
        with pytest.raises(UserError) as caught:
            wrap(["true"], SandboxPolicy(**{field: (tmp_path / "none",)}))
        assert caught.value.code == "sandbox_path"


@needs_sandbox
def test_devices_are_let_in_one_by_one() -> None:
    code = "import os; print(os.path.exists('/dev/kmsg'), os.access('/dev/zero', os.R_OK), os.path.exists('/dev/full'))"
    done = run(wrap([sys.executable, "-c", code], SandboxPolicy(devices=(Path("/dev/kmsg"),))))
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
    done = run(wrap([sys.executable, "-c", code], SandboxPolicy()))
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


@needs_sandbox
def test_read_only_below_read_write(tmp_path: Path) -> None:
    work = tmp_path / "work"
    fixed = work / "in"
    fixed.mkdir(parents=True)
    (fixed / "a").write_text("input")
    code = (
        "import pathlib, sys; work = pathlib.Path(sys.argv[1]); print((work / 'in/a').read_text());"
        "(work / 'b').write_text('x')\n"
        "try: (work / 'in/a').write_text('x')\n"
        "except OSError as err: print(err.strerror)"
    )
    policy = SandboxPolicy(read_write=(work,), read_only=(fixed,))
    done = run(wrap([sys.executable, "-c", code, str(work)], policy))
    assert done.stdout.splitlines() == ["input", "Read-only file system"], done.stderr
    assert (work / "b").exists()


@needs_sandbox
def test_modules_on_pythonpath_are_readable(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("value = 7")
    argv = [sys.executable, "-P", "-c", "import theirs; print(theirs.value)"]
    done = run(wrap(argv, SandboxPolicy(), env={"PYTHONPATH": str(tmp_path)}))
    assert done.stdout == "7\n", done.stderr


@needs_sandbox
def test_a_compiler_works_inside(tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    source.write_text('#include <cmath>\nextern "C" double f(double x) { return std::sqrt(x); }\n')
    argv = ["c++", "-shared", "-fPIC", "-o", str(tmp_path / "a.so"), str(source)]
    done = run(wrap(argv, SandboxPolicy(read_write=(tmp_path,))))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.so").stat().st_size > 0


@needs_sandbox
def test_killing_the_started_process_ends_everything_inside(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    argv = wrap([sys.executable, "-c", code], SandboxPolicy(read_write=(tmp_path,)), cwd=tmp_path)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.kill()
        # The pipe's end comes only when nobody inside holds it any more.
        assert process.stdout.read() == b""


def test_homes_are_never_bound_as_a_whole() -> None:
    for path in sandbox.interpreter_paths():
        for home in (Path.home(), Path("/root"), Path("/home"), Path("/tmp")):
            assert not home.is_relative_to(path), f"{path} would show {home}"


def test_without_a_namespace_the_users_other_processes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """RLIMIT_NPROC is the user's: with it, a small limit would stop a child of somebody who has a desktop open."""
    monkeypatch.setattr(sandbox, "detect", lambda: NONE)
    policy = SandboxPolicy(processes=3, file_bytes=5)
    limits = json.loads(wrap(["true"], policy, "optional")[4])["limits"]
    assert limits["RLIMIT_FSIZE"] == 5  # what the kernel keeps per process holds all the same

    def apply() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    # Root is exempt from the limit, so it proves nothing; somebody else can.
    user = 65534 if os.geteuid() == 0 else None
    others = [subprocess.Popen(["sleep", "60"], user=user, cwd="/") for _ in range(4)]
    try:
        done = run(["sh", "-c", "true & true & wait; echo done"], user=user, cwd="/", preexec_fn=apply)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert done.stdout == "done\n", done.stderr
