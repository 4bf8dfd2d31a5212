from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ytk_core.errors import BoardError, NotAvailableError, ToolkitError
from ytk_kronos import hostlib


def test_a_built_library_is_used_again(host_cache, monkeypatch):
    monkeypatch.setattr(hostlib, "_compile", lambda *_: pytest.fail("compiled again"))
    lines: list[str] = []
    library = hostlib.ensure_host(host_cache, lines.append)
    assert library.is_file()
    assert lines == []


def test_the_key_follows_sources_and_engine(tmp_path, monkeypatch):
    first = hostlib.content_key()
    copy = tmp_path / "host"
    shutil.copytree(hostlib.host_sources(), copy)
    monkeypatch.setattr(hostlib, "host_sources", lambda: copy)
    assert hostlib.content_key() == first
    with (copy / "ov_types.h").open("a") as file:
        file.write("// another line\n")
    second = hostlib.content_key()
    monkeypatch.setattr(hostlib, "openvino_version", lambda: "2026.4.2")
    assert len({first, second, hostlib.content_key()}) == 3


def test_a_missing_compiler_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BoardError, match=r"g\+\+ is not installed") as caught:
        hostlib.ensure_host(tmp_path / "cache")
    assert caught.value.code == "no_compiler"
    assert "apt install g++" in caught.value.hint


def test_a_failed_compilation_leaves_nothing_and_shows_its_first_lines(tmp_path, monkeypatch):
    copy = tmp_path / "host"
    shutil.copytree(hostlib.host_sources(), copy)
    (copy / "ov_host.cpp").write_text("#error this source is broken\n")
    for name in ("kernel_library.cpp", "ov_types.cpp"):
        (copy / name).write_text("")
    monkeypatch.setattr(hostlib, "host_sources", lambda: copy)
    with pytest.raises(ToolkitError, match="this source is broken") as caught:
        hostlib.ensure_host(tmp_path / "cache")
    assert caught.value.code == "host_build_failed"
    assert list((tmp_path / "cache").iterdir()) == []


def test_missing_headers_are_the_boards_to_mend(tmp_path, monkeypatch):
    copy = tmp_path / "host"
    shutil.copytree(hostlib.host_sources(), copy)
    for name in hostlib.SOURCES:
        (copy / name).write_text("#include <no_such_header_of_the_standard_library>\n")
    monkeypatch.setattr(hostlib, "host_sources", lambda: copy)
    with pytest.raises(BoardError, match="no_such_header") as caught:
        hostlib.ensure_host(tmp_path / "cache")
    assert "apt install g++" in caught.value.hint


def test_a_missing_engine_says_what_to_install(monkeypatch):
    monkeypatch.setattr(hostlib.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NotAvailableError, match="OpenVINO is not installed") as caught:
        hostlib.content_key()
    assert "yasp-toolkit[kronos]" in caught.value.hint


def test_the_engine_field_is_year_and_minor():
    year, minor = hostlib.openvino_version().split(".")[:2]
    assert hostlib.engine_field() == f"ov{year}{minor}"


def test_two_processes_may_build_at_once(tmp_path):
    # A stand-in for g++ that both processes enter before either leaves: the race is certain, not likely.
    tools, cache = tmp_path / "tools", tmp_path / "cache"
    tools.mkdir()
    compiler = tools / "g++"
    compiler.write_text(
        f"""#!{sys.executable}
import os, pathlib, sys, time
here = pathlib.Path({str(tmp_path)!r})
(here / f"entered-{{os.getpid()}}").touch()
while len(list(here.glob("entered-*"))) < 2:
    time.sleep(0.005)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("library")
"""
    )
    compiler.chmod(0o755)
    code = f"from pathlib import Path; from ytk_kronos import hostlib; print(hostlib.ensure_host(Path({str(cache)!r})))"
    env = {"PATH": str(tools)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    paths = {process.communicate(timeout=600)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0]
    (path,) = paths
    assert Path(path).read_text() == "library"
    assert [entry.name for entry in cache.iterdir()] == [Path(path).name]
