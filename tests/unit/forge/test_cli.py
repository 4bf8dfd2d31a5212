from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ytk_core.errors import ExitCode, UserError
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.signing import load_or_create_key, verify_manifest
from ytk_forge.main import main
from ytk_forge.readiness import problems
from ytk_forge.toolchain import SHIPPED_DIR

from fakes import kernel_bundles as bundles
from fakes.forge_toolchains import SHIPPED


@pytest.fixture
def run(mode):
    def body(*args: object):
        runner = CliRunner()
        sandbox = ["--sandbox", mode] if args[0] in {"build", "check", "sign", "toolchains"} else []
        return runner.invoke(main, [*map(str, args), *sandbox])

    return body


@pytest.fixture
def library(tmp_path, build) -> Path:
    """A built library as `ytk embedded build-plugin` leaves it."""
    _, out = build(bundles.fold())
    path = tmp_path / "Col2im.so"
    shutil.copy(out / "plugin.so", path)
    shutil.copy(out / "manifest.json", tmp_path / "Col2im.so.manifest.json")
    return path


class TestToolchains:
    def test_table(self, run, arch):
        result = run("toolchains")
        assert result.exit_code == ExitCode.OK
        assert "amd64-linux-gcc  ready  g++" in result.stdout
        assert f"-a {arch}" in result.stdout
        assert "sandbox: " in result.stderr

    def test_json(self, run, arch):
        result = run("toolchains", "-o", "json")
        row = next(row for row in json.loads(result.stdout)["toolchains"] if row["name"] == "amd64-linux-gcc")
        assert row["ready"]
        assert str(arch) in row["arch_specs"]
        assert row["missing"] == []

    def test_one_toolchain_by_name(self, run):
        result = run("toolchains", "amd64-linux-gcc", "-o", "json")
        assert [row["name"] for row in json.loads(result.stdout)["toolchains"]] == ["amd64-linux-gcc"]

    def test_unknown_name(self, run):
        result = run("toolchains", "vax")
        assert result.exit_code == ExitCode.YOURS
        assert "no toolchain 'vax'" in result.stderr
        assert "amd64-linux-gcc" in result.stderr

    def test_one_that_builds_marked_plugins_only_says_so_and_how_to_do_better(self, run):
        jetson = SHIPPED["arm64-sm87-l4t364-cu126-trt103"]
        if problems(jetson, declared=True):
            pytest.skip(" ".join(problems(jetson, declared=True)))
        result = run("toolchains", jetson.name)
        assert result.exit_code == ExitCode.OK
        first, *rest = result.stdout.splitlines()
        assert "ready, only with --declared-abi: NOT TARGET-VERIFIED" in first
        assert "  TensorRT: declared interface 1 (no SDK headers)" in rest
        assert any(line.startswith("  device code: NVRTC ") for line in rest)
        assert any("missing: toolchain" in line and "set tensorrt.include_dir" in line for line in rest)

    def test_one_that_is_not_ready_is_a_failure_only_when_asked_for(self, run, tmp_path):
        text = (SHIPPED_DIR / "amd64-linux-gcc.toml").read_text()
        text = text.replace('"g++", "x86_64-linux-gnu-g++"', '"no-such-g++"').replace('"amd64-linux-gcc"', '"mine"')
        (tmp_path / "mine.toml").write_text(text)
        assert run("toolchains", "--toolchain-dir", tmp_path).exit_code == ExitCode.OK
        assert run("toolchains", "mine", "--toolchain-dir", tmp_path).exit_code == ExitCode.VERDICT

    def test_missing_compiler(self, run, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        result = run("toolchains")
        assert result.exit_code == ExitCode.VERDICT, "none is ready"
        assert "NOT READY" in result.stdout
        assert "missing: toolchain amd64-linux-gcc: no C++ compiler" in result.stdout
        assert "apt-get install g++" in result.stdout

    def test_trying_builds_for_every_arch_spec(self, run, tmp_path, monkeypatch):
        # A narrower toolchain file: one build is enough to see that it is made.
        text = (SHIPPED_DIR / "amd64-linux-gcc.toml").read_text()
        text = text.replace('["cpuv4", "cpuv3", "cpuv2"]', '["cpuv2"]').replace('["ov20264", "ort132"]', '["ov20264"]')
        (tmp_path / "t.toml").write_text(text)
        result = run("toolchains", "amd64-linux-gcc", "--try", "--toolchain-dir", tmp_path)
        assert result.exit_code == ExitCode.OK, result.output
        assert "amd64-linux-gcc  works" in result.stdout
        (tmp_path / "t.toml").write_text(text.replace('"libm.so.6",', ""))
        result = run("toolchains", "amd64-linux-gcc", "--try", "--toolchain-dir", tmp_path)
        assert result.exit_code == ExitCode.VERDICT
        assert "needed: found libm.so.6" in result.stdout

    def test_wrong_file(self, run, tmp_path):
        (tmp_path / "t.toml").write_text("name = 1\n")
        result = run("toolchains", "--toolchain-dir", tmp_path)
        assert result.exit_code == ExitCode.YOURS
        assert "t.toml" in result.stderr
        assert "[bad_toolchain]" in result.stderr
        assert "hint: " in result.stderr


class TestSigning:
    def test_build_sign_check(self, run, tmp_path, arch, cache_dir):
        """From the key to the refusal of a changed byte, by hand."""
        (tmp_path / "b.py").write_text(render_bundle(bundles.fold()))
        (tmp_path / "trusted").write_text(run("key", tmp_path / "key.pem").output)
        (tmp_path / "others").write_text(run("key", tmp_path / "other.pem").output)
        library = tmp_path / "Col2im.so"
        signing = ["--signing-key", tmp_path / "key.pem", "--cache-dir", cache_dir]
        assert run("build", tmp_path / "b.py", "-a", arch, "-o", library, *signing).exit_code == ExitCode.OK
        assert run("check", library, "--trusted-keys", tmp_path / "trusted").exit_code == ExitCode.OK
        refused = run("check", library, "--trusted-keys", tmp_path / "others")
        assert refused.exit_code == ExitCode.YOURS
        assert "[untrusted_key]" in refused.stderr
        content = bytearray(library.read_bytes())
        content[-1] ^= 1
        library.write_bytes(content)
        refused = run("check", library, "--trusted-keys", tmp_path / "trusted")
        assert "[plugin_changed]" in refused.stderr
        assert "the library was changed" in refused.stderr

    def test_unsigned(self, run, library, tmp_path):
        (tmp_path / "trusted").write_text(run("key", tmp_path / "key.pem").output)
        refused = run("check", library, "--trusted-keys", tmp_path / "trusted")
        assert "[unsigned_plugin]" in refused.stderr
        assert "--allow-unsigned-plugins" in refused.stderr


class TestBuild:
    def test_library_and_manifest(self, run, tmp_path, arch, cache_dir):
        (tmp_path / "b.py").write_text(render_bundle(bundles.fold()))
        result = run("build", tmp_path / "b.py", "-a", arch, "-o", tmp_path / "Col2im.so", "--cache-dir", cache_dir)
        assert result.exit_code == ExitCode.OK, result.output
        assert result.stdout.startswith(f"{tmp_path / 'Col2im.so'}  yasp::Col2im  {arch}  blake3:")
        assert "# audit shape: ok" in result.stderr
        assert {p.name for p in tmp_path.iterdir()} == {"b.py", "Col2im.so", "Col2im.so.manifest.json"}
        assert run("check", tmp_path / "Col2im.so").exit_code == ExitCode.OK

    def test_a_failure_leaves_no_file(self, run, tmp_path, arch):
        (tmp_path / "b.py").write_text(
            render_bundle(bundles.with_source(bundles.fold(), "int ytk_launch() { return oops; }"))
        )
        result = run("build", tmp_path / "b.py", "-a", arch, "-o", tmp_path / "Col2im.so")
        assert result.exit_code == ExitCode.CANDIDATES
        assert "error: the kernel does not compile: SOURCE:1:" in result.stderr
        assert {p.name for p in tmp_path.iterdir()} == {"b.py"}

    def test_missing_output_directory(self, run, tmp_path, arch, cache_dir):
        (tmp_path / "b.py").write_text(render_bundle(bundles.fold()))
        result = run("build", tmp_path / "b.py", "-a", arch, "-o", tmp_path / "no" / "x.so", "--cache-dir", cache_dir)
        assert result.exit_code == ExitCode.YOURS
        assert "mkdir -p" in result.stderr

    def test_debug_shows_the_traceback(self, run, tmp_path, arch):
        from ytk_core.errors import FormatError

        result = run("build", tmp_path / "none.py", "-a", arch, "-o", tmp_path / "x.so", "--debug")
        assert isinstance(result.exception, FormatError)


class TestCheck:
    def test_good(self, run, library):
        result = run("check", library)
        assert result.exit_code == ExitCode.OK, result.output
        assert result.stdout.splitlines()[0].startswith("ok      digest")
        assert "20 of 20 checks passed" in result.stderr

    def test_json(self, run, library):
        checks = json.loads(run("check", library, "-o", "json").stdout)["checks"]
        assert checks[0]["name"] == "digest"
        assert all(check["ok"] for check in checks)

    def test_a_changed_byte_is_not_loaded(self, run, library):
        content = bytearray(library.read_bytes())
        content[6000] ^= 1
        library.write_bytes(content)
        result = run("check", library)
        assert result.exit_code == ExitCode.VERDICT
        assert "FAILED  digest" in result.stdout
        assert "fix: " in result.stdout
        assert "0 of 1 checks passed" in result.stderr

    def test_for_another_arch_spec(self, run, library, arch):
        from ytk_core.archspec import ArchSpec

        other = ArchSpec(arch.cpu, arch.device, arch.os, "glibc231", arch.engine)
        result = run("check", library, "-a", other)
        assert result.exit_code == ExitCode.OK
        assert "wanted" not in result.stdout

    def test_no_manifest(self, run, library, tmp_path):
        (tmp_path / "Col2im.so.manifest.json").unlink()
        result = run("check", library)
        assert result.exit_code == ExitCode.YOURS
        assert "--manifest" in result.stderr

    def test_named_manifest_and_missing_library(self, run, library, tmp_path):
        moved = tmp_path / "m.json"
        (tmp_path / "Col2im.so.manifest.json").rename(moved)
        assert run("check", library, "--manifest", moved).exit_code == ExitCode.OK
        library.unlink()
        result = run("check", library, "--manifest", moved)
        assert result.exit_code == ExitCode.YOURS
        assert "no such file" in result.stderr


def test_help_is_light():
    code = "import sys; from ytk_forge.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(sorted(set(sys.modules) & {'torch', 'grpc', 'sqlalchemy', 'jinja2', 'elftools'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "toolchains" in done.stdout


class TestSign:
    @pytest.fixture
    def key(self, tmp_path) -> Path:
        path = tmp_path / "key.pem"
        load_or_create_key(path)
        return path

    def test_a_library_of_elsewhere_is_audited_and_signed(self, run, library, key):
        trusted = [load_or_create_key(key).public]
        beside = library.with_name(library.name + ".manifest.json")
        before = read_plugin_manifest(beside)
        with pytest.raises(UserError, match="not signed"):
            verify_manifest(before, library, trusted)
        result = run("sign", library, "--signing-key", key)
        assert result.exit_code == ExitCode.OK, result.stderr
        assert trusted[0].key_id in result.stdout
        after = read_plugin_manifest(beside)
        assert verify_manifest(after, library, trusted) == trusted[0]
        assert [check.name for check in after.checks] == [check.name for check in before.checks]

    def test_nothing_that_fails_its_audit_is_signed(self, run, library, key):
        beside = library.with_name(library.name + ".manifest.json")
        before = beside.read_bytes()
        library.write_bytes(library.read_bytes()[:-1] + b"x")
        result = run("sign", library, "--signing-key", key)
        assert result.exit_code == ExitCode.VERDICT
        assert "FAILED  digest" in result.stdout
        assert beside.read_bytes() == before
