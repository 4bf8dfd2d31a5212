from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ytk_core.archspec import ArchSpec, host_arch_specs, host_runtime
from ytk_core.errors import FormatError, NotAvailableError, UserError
from ytk_forge import toolchain as toolchains
from ytk_forge.readiness import problems
from ytk_forge.toolchain import (
    SHIPPED_DIR,
    find_compiler,
    glibc_of,
    load_toolchain,
    load_toolchains,
    parse_version,
    show_version,
    toolchain_for,
)

SHIPPED = SHIPPED_DIR / "amd64-linux-gcc.toml"
CROSS = """
schema_version = 1
name = "cross"
description = "Orin"
[match]
cpu = ["arm64"]
device = ["sm87"]
os = ["dos6010"]
runtime = ["cu114"]
engine = ["trt86"]
[host]
triple = "aarch64-linux-gnu"
compilers = ["no-such-aarch64-g++"]
min_compiler = "9.3"
sysroot = "/no/such/sysroot"
elf_machine = "EM_AARCH64"
elf_class = 64
max_glibc = "2.31"
max_glibcxx = "3.4.28"
allowed_needed = ["libc.so.6"]
install = "apt-get install g++-aarch64-linux-gnu"
[device]
sm = "sm_87"
compiler = "nvrtc"
version = "11.8"
launch = "driver"
install = "pip install nvidia-cuda-nvrtc-cu11==11.8.89"
[tensorrt]
version = "8.6"
include_dir = "/opt/trt/include"
[probe]
emulator = ["qemu-aarch64"]
libraries = ["/no/such/libnvinfer.so"]
"""


def write(tmp_path: Path, text: str, name: str = "t.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def fake_compiler(tmp_path: Path, *, version: str = "12.2.0", machine: str = "x86_64-linux-gnu", code: int = 0) -> Path:
    path = tmp_path / "g++"
    path.write_text(
        f"""#!/bin/sh
case "$1" in -dumpfullversion) echo {version};; -dumpmachine) echo {machine};; *) echo fake {version};; esac
exit {code}
"""
    )
    path.chmod(0o755)
    return path


class TestLookup:
    @pytest.mark.parametrize("level", ["cpuv2", "cpuv3", "cpuv4"])
    @pytest.mark.parametrize("engine", ["ov20264", "ov20252", "ort132"])
    def test_every_level_and_engine_of_this_machine(self, level, engine):
        assert toolchain_for(ArchSpec("amd64", level, "linux", host_runtime(), engine)).name == "amd64-linux-gcc"

    @pytest.mark.parametrize(
        ("wanted", "differing", "hint"),
        [
            ("arm64-cpu82-jp6-glibc231-ov20252", ["os (jp6, has linux)"], "-a arm64-cpu82-linux-glibc231-ov20252"),
            (
                "amd64-cpuv4-qnx800-glibc236-ov20264",
                ["os (qnx800, has linux)"],
                "-a amd64-cpuv4-linux-glibc236-ov20264",
            ),
        ],
    )
    def test_unknown_arch_names_the_nearest_and_every_differing_field(self, wanted, differing, hint):
        with pytest.raises(UserError) as caught:
            toolchain_for(ArchSpec.parse(wanted))
        assert caught.value.code == "unknown_arch"
        assert wanted in caught.value.message
        for text in differing:
            assert text in caught.value.message
        assert hint in caught.value.hint

    def test_one_field_differs(self, tmp_path):
        only = load_toolchain(write(tmp_path, CROSS))
        with pytest.raises(UserError) as caught:
            toolchain_for(ArchSpec.parse("arm64-sm87-dos6010-cu114-trt103"), [only])
        assert (
            "the nearest is arm64-sm87-dos6010-cu114-trt86, which differs in engine (trt103, has trt86)"
            in caught.value.message
        )

    def test_no_toolchain_at_all(self):
        with pytest.raises(UserError, match="no toolchain file at all"):
            toolchain_for(ArchSpec.parse("arm64-cpu80-linux-glibc231-ov20252"), [])

    def test_advertised_arch_specs_are_what_this_machine_says_itself(self):
        listed = load_toolchain(SHIPPED).arch_specs()
        assert set(host_arch_specs("ov20264")) <= set(listed)
        assert len(set(listed)) == len(listed)

    def test_own_directory_replaces_a_shipped_file(self, tmp_path):
        write(tmp_path, SHIPPED.read_text().replace("x86-64 CPU kernels", "MINE"))
        found = load_toolchains([tmp_path])
        assert [t.description.startswith("MINE") for t in found if t.name == "amd64-linux-gcc"] == [True]

    def test_a_file_that_extends_a_shipped_one_says_only_what_differs(self, tmp_path):
        name = "arm64-sm87-dos6010-cu114-trt86"
        (tmp_path / "sdk.toml").write_text(f'extends = "{name}"\n[tensorrt]\ninclude_dir = "/opt/include"\n')
        shipped = load_toolchain(SHIPPED_DIR / f"{name}.toml")
        (mine,) = [each for each in load_toolchains([tmp_path]) if each.name == name]
        assert mine.tensorrt is not None
        assert mine.tensorrt.include_dir == "/opt/include"
        tensorrt = msgspec.structs.replace(mine.tensorrt, include_dir="")
        assert msgspec.structs.replace(mine, tensorrt=tensorrt) == shipped

    def test_a_file_that_extends_nothing_we_ship(self, tmp_path):
        (tmp_path / "sdk.toml").write_text('extends = "vax"\n')
        with pytest.raises(FormatError, match="extends 'vax', which is no shipped toolchain") as caught:
            load_toolchains([tmp_path])
        assert "amd64-linux-gcc" in caught.value.hint

    def test_missing_directory(self, tmp_path):
        with pytest.raises(UserError, match="no toolchain directory"):
            load_toolchains([tmp_path / "none"])

    def test_impossible_combinations_of_fields_are_left_out(self, tmp_path):
        text = SHIPPED.read_text().replace('cpu = ["amd64"]', 'cpu = ["amd64", "arm64"]')
        listed = load_toolchain(write(tmp_path, text)).arch_specs()
        assert {spec.cpu for spec in listed} == {"amd64"}


class TestSchema:
    def test_every_field_of_the_design_is_read(self, tmp_path):
        found = load_toolchain(write(tmp_path, CROSS))
        assert found.device is not None
        assert found.tensorrt is not None
        assert (found.device.sm, found.device.compiler, found.device.launch) == ("sm_87", "nvrtc", "driver")
        assert (found.tensorrt.version, found.probe.emulator) == ("8.6", ["qemu-aarch64"])
        arch = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
        assert (found.max_glibc(arch), found.max_glibcxx(arch)) == ((2, 31), (3, 4, 28))

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("schema_version = 1", "schema_version = 2", "schema_version is 2"),
            ("triple =", "tripel =", "tripel"),
            ('install = "apt', 'instal = "apt', "instal"),
            ('triple = "aarch64-linux-gnu"', "", "missing required field `triple`"),
            ("elf_class = 64", "elf_class = 63", "elf_class is 63"),
            ("elf_class = 64", 'elf_class = "64"', "Expected `int`"),
            ('min_compiler = "9.3"', 'min_compiler = "nine"', "not a version: 'nine'"),
            ('max_glibc = "2.31"', 'max_glibc = "host"', "not a version: 'host'"),
            ('max_glibcxx = "3.4.28"', 'max_glibcxx = "x"', "not a version"),
            ('max_glibcxx = "3.4.28"', "max_glibcxx = {}", "must not be empty"),
            ('max_glibcxx = "3.4.28"', 'max_glibcxx = {"a" = "3.4"}', "not a version"),
            ('compilers = ["no-such-aarch64-g++"]', "compilers = []", "must not be empty"),
            ('cpu = ["arm64"]', "cpu = []", "match.cpu is empty"),
            ('engine = ["trt86"]', 'engine = ["trt*"]', "advertise.engine must list"),
            ('compiler = "nvrtc"', 'compiler = "icc"', "icc"),
            ('launch = "driver"', 'launch = "fork"', "fork"),
            ('version = "8.6"', 'version = "eight"', "not a version: 'eight'"),
            ('version = "11.8"', 'version = "new"', "not a version: 'new'"),
            ('device = ["sm87"]', 'device = ["cpu80"]', "a GPU needs [device]"),
            ("[probe]", "[prob]", "prob"),
            ("[probe]", '[advertise]\nboard = ["x"]\n[probe]', "advertise.board"),
            ("[probe]", '[advertise]\nengine = ["host"]\n[probe]', "'host' is only known for the runtime"),
            ("[match]", "[match", "not a readable toolchain file"),
        ],
    )
    def test_a_wrong_file_is_named_with_the_key(self, tmp_path, old, new, says):
        assert old in CROSS
        path = write(tmp_path, CROSS.replace(old, new, 1))
        with pytest.raises(FormatError) as caught:
            load_toolchain(path)
        assert caught.value.code == "bad_toolchain"
        assert str(path) in caught.value.message
        assert says in caught.value.message

    def test_not_utf8_and_absent(self, tmp_path):
        bad = tmp_path / "b.toml"
        bad.write_bytes(b"\xff\xfe")
        for path in (bad, tmp_path / "none.toml"):
            with pytest.raises(FormatError, match="not a readable toolchain file"):
                load_toolchain(path)


class TestVersions:
    @pytest.mark.parametrize(("text", "version"), [("2.36", (2, 36)), ("3.4.30", (3, 4, 30)), ("12", (12,))])
    def test_round_trip(self, text, version):
        assert parse_version(text) == version
        assert show_version(version) == text

    @pytest.mark.parametrize(
        ("runtime", "glibc", "glibcxx"),
        [
            ("glibc231", (2, 31), (3, 4, 28)),
            ("glibc233", (2, 33), (3, 4, 28)),
            ("glibc236", (2, 36), (3, 4, 30)),
            ("glibc227", (2, 27), (3, 4, 28)),
            ("glibc299", (2, 99), (3, 4, 33)),
        ],
    )
    def test_limits_follow_the_runtime_field(self, runtime, glibc, glibcxx):
        arch = ArchSpec("amd64", "cpuv3", "linux", runtime, "ov20264")
        shipped = load_toolchain(SHIPPED)
        assert (shipped.max_glibc(arch), shipped.max_glibcxx(arch)) == (glibc, glibcxx)

    def test_a_gpu_runtime_names_no_glibc(self):
        with pytest.raises(UserError, match="names no glibc"):
            glibc_of(ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86"))


class TestCompiler:
    def test_this_machines(self, toolchain):
        found = find_compiler(toolchain)
        assert Path(found.path).is_absolute()
        assert found.version >= (11,)
        assert show_version(found.version) in found.banner
        assert problems(toolchain) == []

    def test_missing_says_what_to_install(self, toolchain, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NotAvailableError) as caught:
            find_compiler(toolchain)
        assert caught.value.code == "compiler_missing"
        assert "g++, x86_64-linux-gnu-g++" in caught.value.message
        assert "apt-get install g++" in caught.value.hint
        assert any("apt-get install g++" in text for text in problems(toolchain))

    @pytest.mark.parametrize(
        ("how", "code"),
        [
            ({"version": "10.2.1"}, "compiler_too_old"),
            ({"machine": "aarch64-linux-gnu"}, "compiler_wrong_target"),
            ({"code": 1}, "compiler_broken"),
        ],
    )
    def test_unusable(self, toolchain, monkeypatch, tmp_path, how, code):
        fake_compiler(tmp_path, **how)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
        with pytest.raises(NotAvailableError) as caught:
            find_compiler(toolchain)
        assert caught.value.code == code
        assert caught.value.hint

    def test_sysroot_missing(self, toolchain, monkeypatch, tmp_path):
        text = SHIPPED.read_text().replace('sysroot = ""', 'sysroot = "/no/such/sysroot"')
        with pytest.raises(NotAvailableError, match="no sysroot /no/such/sysroot"):
            find_compiler(load_toolchain(write(tmp_path, text)))

    def test_asked_again_when_its_file_changes(self, toolchain, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
        path = fake_compiler(tmp_path, version="12.1.0")
        os.utime(path, ns=(1, 1))
        assert find_compiler(toolchain).version == (12, 1, 0)
        fake_compiler(tmp_path, version="12.3.0")
        assert find_compiler(toolchain).version == (12, 3, 0)

    def test_problems_list_everything_that_is_missing(self, tmp_path):
        texts = problems(load_toolchain(write(tmp_path, CROSS)))
        joined: Any = "\n".join(texts)
        assert "apt-get install g++-aarch64-linux-gnu" in joined
        assert "no NvInferRuntime.h in tensorrt.include_dir = /opt/trt/include" in joined
        assert "/no/such/libnvinfer.so" in joined


def test_shipped_files_name_themselves():
    for path in SHIPPED_DIR.glob("*.toml"):
        assert toolchains.load_toolchain(path).name == path.stem
