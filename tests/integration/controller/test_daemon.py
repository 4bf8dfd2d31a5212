"""The daemon as a process: ready line, signals, exit codes."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ytk_controller.exit_codes import ControllerExit
from ytk_core.channels import sync_channel
from ytk_proto.v1 import fleet_pb2, fleet_pb2_grpc

from fakes.store_agents import CLIENT_TOKEN, WAIT_S

COMMAND = (sys.executable, "-m", "ytk_controller.main", "serve")


@contextmanager
def daemon(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    key = tmp_path / "key"
    key.write_text(CLIENT_TOKEN)
    argv = [*COMMAND, "--state-dir", str(tmp_path / "state"), "--bootstrap-token", f"client:me:{key}", *options]
    if "--listen" not in options:
        argv += ["--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, json.loads(line)["address"] if line else ""
        finally:
            if process.poll() is None:
                process.kill()


def whoami(address: str) -> str:
    with sync_channel(address, CLIENT_TOKEN) as channel:
        stub = fleet_pb2_grpc.FleetServiceStub(channel)
        return stub.GetServerInfo(fleet_pb2.GetServerInfoRequest(), timeout=WAIT_S).principal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_told_to_stop(tmp_path: Path, number: int) -> None:
    with daemon(tmp_path) as (process, address):
        assert whoami(address) == "me"
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        process.send_signal(number)
        assert process.wait(WAIT_S) == ControllerExit.OK
        assert process.stderr is not None
        events = [json.loads(line)["event"] for line in process.stderr]
        assert events[-1] == "stopping"
    assert CLIENT_TOKEN.encode() not in (tmp_path / "state" / "controller.db").read_bytes()


def test_a_killed_daemon_comes_back_on_the_same_state(tmp_path: Path) -> None:
    with daemon(tmp_path) as (process, address):
        process.kill()
        process.wait(WAIT_S)
    with daemon(tmp_path) as (process, address):
        assert whoami(address) == "me"


def test_what_is_in_its_way_has_an_exit_code_and_a_hint(tmp_path: Path) -> None:
    with daemon(tmp_path) as (_, address):
        for options, code, word in (
            (("--state-dir", str(tmp_path / "state")), ControllerExit.DATABASE_LOCKED, "controller.db"),
            (("--state-dir", str(tmp_path / "other"), "--listen", address), ControllerExit.ADDRESS, address),
            (("--state-dir", str(tmp_path / "other"), "--listen", "nonsense"), ControllerExit.ADDRESS, "nonsense"),
            (("--state-dir", str(tmp_path / "key" / "x")), ControllerExit.STATE_DIR, "key"),
            (("--state-dir", str(tmp_path / "o"), "--database", "nonsense"), ControllerExit.DATABASE, "nonsense"),
            (("--state-dir", str(tmp_path / "o"), "--database", "mysql://x/y"), ControllerExit.DATABASE, "mysql"),
            (("--state-dir", str(tmp_path / "o"), "--bootstrap-token", "x"), ControllerExit.TOKEN, "'x'"),
            (("--state-dir", str(tmp_path / "o"), "--heartbeat-seconds", "60"), ControllerExit.USAGE, "60"),
        ):
            argv = [*COMMAND, *options]
            if "--listen" not in options:
                argv += ["--listen", "127.0.0.1:0"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=False)
            assert done.returncode == code, (options, done.stderr)
            assert word in done.stderr
            assert "Traceback" not in done.stderr
            assert done.stdout == ""
