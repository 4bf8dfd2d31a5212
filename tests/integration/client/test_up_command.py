"""`ytk up` as a user runs it, with the real controller and no agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from ytk_client.cli import main as entry
from ytk_core.errors import ExitCode

ALONE = tuple(word for name in ("kronos", "gaia-generator", "gaia-evaluator", "forge") for word in ("--without", name))


@pytest.fixture
def ytk(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("YTK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("YTK_CONFIG", str(tmp_path / "none.toml"))
    for name in ("YTK_CONTROLLER", "YTK_API_KEY", "YTK_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str):
        capsys.readouterr()
        code = entry.run(words)
        return code, *capsys.readouterr()

    yield run
    run("up", "--stop")


def test_detach_status_use_second_stop(ytk, tmp_path):
    assert ytk("up", "--status")[0] == ExitCode.VERDICT
    code, out, err = ytk("up", "--detach", *ALONE, "-o", "json")
    assert code == 0, err
    status = json.loads(out)
    assert [part["state"] for part in status["parts"]] == ["ready"]
    assert ytk("jobs", "list")[0] == 0
    assert "no kronos worker is connected" in ytk("embedded", "workers")[2]
    code, out, _ = ytk("up", "--status", "-o", "json")
    assert (code, json.loads(out)["pid"]) == (0, status["pid"])
    for again in (("up", *ALONE), ("up", "--detach", *ALONE)):
        code, _, err = ytk(*again)
        assert code == ExitCode.YOURS
        assert "error[already_running]" in err
        assert str(status["pid"]) in err
    assert ytk("up", "--stop")[0] == 0
    assert not psutil.pid_exists(status["parts"][0]["pid"])
    code, _, err = ytk("jobs", "list")
    assert code == ExitCode.BOARDS
    assert "ytk up" in err
    assert ytk("up", "--stop")[2].startswith("nothing runs")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_ends_with_a_signal_and_takes_the_controller_along(tmp_path, number):
    environment = os.environ | {"YTK_HOME": str(tmp_path), "YTK_CONFIG": str(tmp_path / "none.toml")}
    with subprocess.Popen(
        [sys.executable, "-m", "ytk_client.cli.main", "up", *ALONE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        while not any(line.startswith("ready.") for line in lines):
            line = process.stderr.readline()
            assert line, "".join(lines)
            lines.append(line)
        status = json.loads((tmp_path / "up/status.json").read_text())
        process.send_signal(number)
        _, rest = process.communicate(timeout=240)
    assert process.returncode == 0
    assert rest.rstrip().endswith("stopped")
    assert not psutil.pid_exists(status["parts"][0]["pid"])
    assert not (tmp_path / "up/client.toml").exists()


def test_start_that_fails_says_why(ytk, tmp_path):
    code, _, err = ytk("up", "--detach", "--listen", "no.such.host.invalid:1", *ALONE)
    assert code in {ExitCode.BOARDS, ExitCode.YOURS}
    assert "controller ended with status" in err
    assert "log" in err


def test_home_that_cannot_be_written(ytk, tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, err = ytk("up", "--home", str(tmp_path / "file/below"), *ALONE)
    assert code == ExitCode.YOURS
    assert "error[bad_home]" in err


def test_flags_that_exclude_each_other(ytk):
    assert ytk("up", "--stop", "--status")[0] == ExitCode.USAGE
