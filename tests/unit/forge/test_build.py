"""Bundle in, audited library and manifest out; what a wrong bundle is told; the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ytk_core import confined
from ytk_core.archspec import ArchSpec
from ytk_core.cuda.nvrtc import Nvrtc
from ytk_core.digests import digest_file
from ytk_core.errors import BoardError, CandidateError, FormatError, NotAvailableError, ToolkitError, UserError
from ytk_core.formats.kernel_bundle import KernelBundle, bundle_digest, render_bundle
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.formats.plugin_meta import Constraints, DeploymentTarget, Launcher
from ytk_forge import build as builds
from ytk_forge import compile as compiles
from ytk_forge.audit import CHECKS
from ytk_forge.build import build_plugin
from ytk_forge.cache import FILES, BuildCache, cache_key
from ytk_forge.trt_headers import TrtHeaders

from fakes import kernel_bundles as bundles


def write(bundle: KernelBundle, directory: Path) -> Path:
    path = directory / "kernel.module_source.py"
    path.write_text(render_bundle(bundle))
    return path


@pytest.fixture
def attempt(tmp_path, arch, mode):
    """Build with a cache of its own; gives the log too."""

    def run(bundle, for_arch=arch, **more):
        lines: list[str] = []
        manifest = build_plugin(
            write(bundle, tmp_path), for_arch, tmp_path / "out", tmp_path / "cache", mode, log=lines.append, **more
        )
        return manifest, "".join(lines)

    return run


class TestResult:
    def test_manifest_says_what_was_built(self, build, arch, compiler):
        bundle = bundles.fold()
        manifest, out = build(bundle)
        assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
        assert read_plugin_manifest(out / "manifest.json") == manifest
        assert manifest.ok
        assert tuple(check.name for check in manifest.checks) == CHECKS
        assert manifest.so_digest == digest_file(out / "plugin.so")
        assert manifest.bundle_digest == bundle_digest(bundle)
        assert (manifest.arch_spec, manifest.toolchain) == (str(arch), "amd64-linux-gcc")
        assert manifest.tools["compiler"] == compiler.banner
        assert "-march=x86-64-" in manifest.tools["flags"]
        assert manifest.meta == bundle.meta

    @pytest.mark.parametrize("make", [bundles.split, bundles.gather])
    def test_other_bundles(self, build, make):
        assert build(make())[0].ok

    def test_same_bundle_gives_same_bytes_anywhere(self, tmp_path, arch, mode):
        """Other directories, another process, another time, no cache: not a byte differs."""
        bundle = bundles.with_source(
            bundles.gather(),
            bundles.gather().source
            + '\nnamespace { struct S { int x; } s; }\nextern "C" const char* when() { return __DATE__ __TIME__ __FILE__; }',
        )
        results = []
        for place in ("one", "a/much/longer/place"):
            directory = tmp_path / place
            directory.mkdir(parents=True)
            script = (
                "import sys; from pathlib import Path; from ytk_core.archspec import ArchSpec\n"
                "from ytk_forge.build import build_plugin\n"
                "build_plugin(Path(sys.argv[1]), ArchSpec.parse(sys.argv[2]), Path('out'), Path('cache'), sys.argv[3])"
            )
            path = write(bundle, directory)
            command = [sys.executable, "-c", script, str(path), str(arch), mode]
            subprocess.run(
                command, cwd=directory, env={"TMPDIR": str(directory), "PATH": "/usr/bin:/bin"}, check=True, timeout=600
            )
            results.append({name: (directory / "out" / name).read_bytes() for name in FILES})
        assert results[0] == results[1]
        assert b"/much/" not in results[1]["plugin.so"]

    def test_levels_differ_in_code(self, attempt, arch):
        digests = set()
        for level in ("cpuv2", "cpuv3"):
            manifest, _ = attempt(bundles.fold(), ArchSpec(arch.cpu, level, arch.os, arch.runtime, arch.engine))
            digests.add(manifest.so_digest)
        assert len(digests) == 2

    def test_extra_flags_reach_the_kernel(self, attempt):
        flags = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-funroll-loops"]
        _, log = attempt(bundles.with_meta(bundles.fold(), compile_flags=flags))
        kernel = next(line for line in log.splitlines() if "kernel.cpp" in line)
        table = next(line for line in log.splitlines() if "plugin.cpp" in line)
        assert all(flag in kernel for flag in flags)
        assert not any(flag in table for flag in flags), "a kernel's flags are its own"

    def test_a_visible_function_of_the_source_stays_inside(self, attempt):
        source = bundles.fold().source + '\nextern "C" __attribute__((visibility("default"))) int peek() { return 1; }'
        manifest, _ = attempt(bundles.with_source(bundles.fold(), source))
        assert manifest.ok


class TestRefusedBeforeCompiling:
    @pytest.fixture(autouse=True)
    def _nothing_is_compiled(self, monkeypatch):
        def never(*_args, **_kwargs):
            pytest.fail("something was compiled")

        monkeypatch.setattr(compiles, "run_confined", never)

    @pytest.mark.parametrize("target", [DeploymentTarget.TENSORRT, DeploymentTarget.TORCH])
    def test_deployment_target(self, attempt, target):
        with pytest.raises(UserError) as caught:
            attempt(bundles.with_meta(bundles.fold(), deployment_target=target))
        assert caught.value.code == "wrong_deployment_target"
        assert f"target {target}" in caught.value.message
        assert "--config deployment_target=cpu" in caught.value.hint

    def test_deployment_target_of_a_tensorrt_arch(self, attempt):
        with pytest.raises(UserError, match="needs tensorrt") as caught:
            attempt(bundles.fold(), ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86"))
        assert "deployment_target=tensorrt" in caught.value.hint

    def test_arch_constraint(self, attempt, arch):
        wanted = "cpuv2" if arch.device != "cpuv2" else "cpuv3"
        bundle = bundles.with_meta(bundles.fold(), constraints=Constraints(arch={"device": wanted}))
        with pytest.raises(UserError) as caught:
            attempt(bundle)
        assert caught.value.code == "arch_constraint"
        assert f"device ({arch.device}, the kernel needs {wanted})" in caught.value.message

    def test_unknown_arch(self, attempt):
        with pytest.raises(UserError) as caught:
            attempt(bundles.fold(), ArchSpec.parse("arm64-cpu82-jp6-glibc231-ov20264"))
        assert caught.value.code == "unknown_arch"

    def test_not_a_bundle(self, tmp_path, arch, mode):
        path = tmp_path / "x.py"
        path.write_text("import os\n")
        with pytest.raises(FormatError, match=r"x\.py"):
            build_plugin(path, arch, tmp_path / "out", tmp_path / "cache", mode)

    def test_missing_compiler(self, attempt, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NotAvailableError, match="no C\\+\\+ compiler"):
            attempt(bundles.fold())


LAUNCH = 'extern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return 0; }\n'


class TestCandidateFaults:
    @pytest.mark.parametrize(
        ("source", "code", "says"),
        [
            ("int ytk_launch() { return oops; }", "compile_error", "SOURCE:1:"),
            ("#error not today\nytk_launch()", "compile_error", "not today"),
            ("static int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return 0; }", "undefined_symbol", "ytk_launch"),
            ("int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return 0; }", "undefined_symbol", "ytk_launch"),
            ('extern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { extern int gone(); return gone(); }', "undefined_symbol", "gone"),
            (
                LAUNCH +
                'extern "C" const ytk_plugin_table* ytk_plugin(void) { return nullptr; }',
                "duplicate_symbol",
                "ytk_plugin",
            ),
            (
                LAUNCH +
                'asm(".text\\n.quad spot\\n.data\\n.globl spot\\nspot: .quad 0\\n.text\\n");',
                "link_error",
                "",
            ),
            (
                LAUNCH +
                "__attribute__((constructor)) void boom() { __builtin_trap(); }",
                "audit_load",
                "signal 4",
            ),
        ],
    )  # fmt: skip
    def test_class_and_code(self, attempt, tmp_path, source, code, says):
        with pytest.raises(CandidateError) as caught:
            attempt(bundles.with_source(bundles.fold(), source))
        assert caught.value.code == code
        assert says in caught.value.message
        assert caught.value.hint
        assert not (tmp_path / "out").exists(), "a failed build leaves nothing"
        assert list((tmp_path / "cache").glob("??/*")) == []

    def test_newer_libc_than_the_arch_has(self, attempt, arch):
        source = bundles.fold().source.replace("float sum = 0;", "float sum = 0 * float(std::exp(double(h)));")
        bundle = msgspec.structs.replace(
            bundles.with_source(bundles.fold(), source), header=bundles.fold().header + "#include <cmath>\n"
        )
        old = ArchSpec(arch.cpu, "cpuv2", arch.os, "glibc228", arch.engine)
        with pytest.raises(CandidateError) as caught:
            attempt(bundle, old)
        assert caught.value.code == "audit_glibc"
        assert "found GLIBC_2.29 of libm.so.6; wanted at most GLIBC_2.28" in caught.value.message

    def test_endless_compilation_is_ended(self, attempt, monkeypatch):
        monkeypatch.setattr(compiles, "COMPILE_LIMIT_S", 1.5)
        source = (
            "template <long N> struct F { static constexpr long v = F<N - 1>::v + F<N - 2>::v; };\n"
            "constexpr long spin() { long s = 0; for (long i = 0; i < 200000000; ++i) s += i % 7; return s; }\n"
            '#pragma GCC diagnostic ignored "-Wall"\n'
            + "".join(
                f"template <int K> constexpr long g{k}() {{ long s = {k}; for (long i = 0; i < 260000; ++i) s += i % 7; return s; }} static_assert(g{k}<0>() != 1);\n"
                for k in range(3000)
            )
            + 'extern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return 0; }'
        )
        with pytest.raises(CandidateError) as caught:
            attempt(bundles.with_source(bundles.fold(), source))
        assert caught.value.code == "compile_timeout"

    def test_a_text_that_eats_all_memory_is_ended(self, attempt, monkeypatch):
        monkeypatch.setattr(confined, "MEMORY_BYTES", 192 * 2**20)
        source = f"constexpr int a[] = {{{'1,' * 3_000_000}}};\n" + LAUNCH.replace("return 0", "return a[0] - 1")
        with pytest.raises(CandidateError) as caught:
            attempt(bundles.with_source(bundles.fold(), source))
        assert caught.value.code == "compile_memory"

    @pytest.mark.parametrize(
        ("output", "returncode", "code"),
        [
            ("/tmp/cc.s: fatal error: error writing to x.s: No space left on device", 1, "disk_full"),
            ("g++: fatal error: Killed signal terminated program cc1plus", 1, "compiler_killed"),
            ("", -9, "compiler_killed"),
        ],
    )
    def test_what_the_machine_does_to_a_compiler_is_the_boards(self, attempt, monkeypatch, output, returncode, code):
        ended = confined.Finished(returncode=returncode, output=output, timed_out=False)
        monkeypatch.setattr(compiles, "run_confined", lambda *_a, **_k: ended)
        with pytest.raises(BoardError) as caught:
            attempt(bundles.fold())
        assert caught.value.code == code

    def test_the_compiler_sees_no_file_of_this_machine(self, attempt, tmp_path, mode):
        if mode != "required":
            pytest.skip("no sandbox on this machine")
        secret = tmp_path / "secret.h"
        secret.write_text("#error s3cret\n")
        with pytest.raises(CandidateError) as caught:
            attempt(bundles.with_source(bundles.fold(), f'#include "{secret}"\nint ytk_launch();'))
        assert "No such file" in caught.value.message
        assert "s3cret" not in caught.value.message


class TestOurFaults:
    def test_a_table_that_does_not_compile_is_ours(self, attempt, monkeypatch):
        monkeypatch.setattr(builds, "render_table", lambda _meta, **_: "int oops = ;")
        with pytest.raises(ToolkitError) as caught:
            attempt(bundles.fold())
        assert caught.value.code == "table_does_not_compile"

    def test_a_table_of_another_meta_is_ours(self, attempt, monkeypatch):
        render = builds.render_table
        monkeypatch.setattr(
            builds, "render_table", lambda meta, **_: render(msgspec.structs.replace(meta, plugin_name="Other"))
        )
        with pytest.raises(ToolkitError) as caught:
            attempt(bundles.fold())
        assert caught.value.code == "audit_name"
        assert "found yasp::Other version 1; wanted yasp::Col2im version 1" in caught.value.message

    def test_no_sandbox_is_the_boards(self, tmp_path, arch, monkeypatch):
        from ytk_core import sandbox

        monkeypatch.setattr(sandbox, "detect", lambda: sandbox.SandboxStatus("none", "none here"))
        with pytest.raises(BoardError) as caught:
            build_plugin(write(bundles.fold(), tmp_path), arch, tmp_path / "out", tmp_path / "cache", "required")
        assert caught.value.code == "no_sandbox"

    def test_optional_builds_without_one(self, tmp_path, arch, monkeypatch):
        from ytk_core import sandbox

        monkeypatch.setattr(sandbox, "detect", lambda: sandbox.SandboxStatus("none", "none here"))
        assert build_plugin(write(bundles.fold(), tmp_path), arch, tmp_path / "out", tmp_path / "cache", "optional").ok


class TestCache:
    @pytest.fixture
    def warm(self, tmp_path, build, cache_dir, attempt):
        """Begin with the Fold bundle built: what a test builds after it is what the test is about."""
        manifest, _ = build(bundles.fold())
        for entry in cache_dir.glob("??/*"):
            if read_plugin_manifest(entry / "manifest.json").bundle_digest == manifest.bundle_digest:
                shutil.copytree(entry, tmp_path / "cache" / entry.parent.name / entry.name)
        assert "from the cache" in attempt(bundles.fold())[1]
        return manifest

    def test_second_build_compiles_nothing(self, attempt, monkeypatch):
        first, _ = attempt(bundles.fold())
        monkeypatch.setattr(compiles, "run_confined", lambda *_a, **_k: pytest.fail("compiled again"))
        again, log = attempt(bundles.fold())
        assert again == first
        assert "# from the cache: " in log
        assert "$ g++" in log, "the log of the build that made it"

    @pytest.fixture
    def key(self, arch, toolchain, compiler):
        def body(bundle=None, for_arch=arch, used=toolchain, by=compiler, device=None, headers=None):
            bundle = bundle or bundles.fold()
            flags = compiles.build_flags(used, for_arch, bundle.meta.compile_flags)
            tools = builds.Tools(compiler=by, device=device, headers=headers)
            return builds._key(bundle, for_arch, used, tools, flags)

        return body

    @pytest.mark.parametrize(
        "change",
        [
            lambda b: bundles.with_source(b, b.source + "\n// other text"),
            lambda b: bundles.with_meta(b, compile_flags=["-O2"]),
            lambda b: bundles.with_meta(b, plugin_version="2"),
            lambda b: bundles.with_meta(b, launcher=Launcher(fixed_workspace_bytes=64)),
        ],
    )
    def test_another_bundle_has_another_key(self, key, change):
        assert key(change(bundles.fold())) != key()
        assert key(bundles.fold()) == key()

    @pytest.mark.parametrize("name", ["RENDERER_VERSION", "AUDIT_VERSION"])
    def test_another_forge_has_another_key(self, key, monkeypatch, name):
        before = key()
        monkeypatch.setattr(builds, name, "next")
        assert key() != before

    def test_another_toolchain_compiler_or_arch_has_another_key(self, key, toolchain, compiler, arch, tmp_path):
        nvrtc = Nvrtc(version="11.8", library="/a/libnvrtc.so.11.2", preload=(), include_dir="/a", size_bytes=1)
        (tmp_path / "NvInferRuntime.h").write_text("one")
        headers = TrtHeaders(include_dir=str(tmp_path), declared=False, banner="x")
        first = key(headers=headers)
        (tmp_path / "NvInferRuntime.h").write_text("two")
        assert key(device=nvrtc) == key(
            device=msgspec.structs.replace(nvrtc, include_dir="/b", library="/b/libnvrtc.so.11.2")
        )
        keys = {
            first,
            key(headers=headers),
            key(device=nvrtc),
            key(device=msgspec.structs.replace(nvrtc, size_bytes=2)),
            key(),
            key(used=msgspec.structs.replace(toolchain, description="other")),
            key(by=msgspec.structs.replace(compiler, banner="g++ 99")),
            key(for_arch=ArchSpec(arch.cpu, arch.device, arch.os, arch.runtime, "ort132")),
        }
        assert len(keys) == 8

    def test_another_bundle_is_built(self, attempt, warm):
        other, log = attempt(bundles.with_meta(bundles.fold(), plugin_version="2"))
        assert "from the cache" not in log
        assert other.bundle_digest != warm.bundle_digest

    def test_a_damaged_entry_is_built_again(self, attempt, warm, tmp_path):
        (entry,) = (tmp_path / "cache").glob("??/*")
        content = bytearray((entry / "plugin.so").read_bytes())
        content[5000] ^= 1
        (entry / "plugin.so").write_bytes(content)
        again, log = attempt(bundles.fold())
        assert "from the cache" not in log
        assert again == warm
        assert "from the cache" in attempt(bundles.fold())[1]

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("cut", [False, True])
    def test_an_incomplete_entry_is_removed(self, warm, tmp_path, name, cut):
        (entry,) = (tmp_path / "cache").glob("??/*")
        if cut and name != "build.log":  # the log has no digest to miss
            (entry / name).write_bytes((entry / name).read_bytes()[:-20])
        else:
            (entry / name).unlink()
        assert BuildCache(tmp_path / "cache").get(entry.name) is None
        assert not entry.exists()

    def test_two_at_once(self, tmp_path, arch, mode):
        path = write(bundles.gather(), tmp_path)
        script = (
            "import sys; from pathlib import Path; from ytk_core.archspec import ArchSpec\n"
            "from ytk_forge.build import build_plugin\n"
            "print(build_plugin(Path(sys.argv[1]), ArchSpec.parse(sys.argv[2]), Path(sys.argv[3]), Path('cache'), sys.argv[4]).so_digest)"
        )
        running = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(path), str(arch), f"out{k}", mode],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            )
            for k in range(4)
        ]
        outputs = [child.communicate(timeout=600)[0] for child in running]
        assert [child.returncode for child in running] == [0] * 4
        assert len(set(outputs)) == 1
        assert len(list((tmp_path / "cache").glob("??/*"))) == 1
        assert not list((tmp_path / "cache").glob("*-*")), "nothing is left aside"

    def test_key_does_not_depend_on_order(self):
        assert cache_key({"a": 1, "b": [2]}) == cache_key({"b": [2], "a": 1})
        assert cache_key({"a": 1}) != cache_key({"a": "1"})

    def test_put_keeps_the_first(self, tmp_path, build):
        _, out = build(bundles.fold())
        cache = BuildCache(tmp_path)
        cache.put("ab" * 32, out)
        found = cache.get("ab" * 32)
        assert found is not None
        before = (found[0] / "plugin.so").stat().st_ino
        cache.put("ab" * 32, out)
        assert (found[0] / "plugin.so").stat().st_ino == before

    def test_the_longest_unused_go_first(self, tmp_path, build):
        _, out = build(bundles.fold())
        size = sum((out / name).stat().st_size for name in FILES)
        cache = BuildCache(tmp_path, max_bytes=2 * size)
        keys = [letter * 64 for letter in "abc"]
        for age, key in enumerate(keys[:2]):
            cache.put(key, out)
            os.utime(tmp_path / key[:2] / key, (1000 + age, 1000 + age))
        assert cache.get(keys[0]) is not None  # used now, so it stays
        cache.put(keys[2], out)
        assert [cache.get(key) is not None for key in keys] == [True, False, True]

    def test_leftovers_of_dead_processes_go(self, tmp_path, build):
        _, out = build(bundles.fold())
        (tmp_path / "new-old").mkdir()
        (tmp_path / "new-fresh").mkdir()
        os.utime(tmp_path / "new-old", (1000, 1000))
        BuildCache(tmp_path).put("ab" * 32, out)
        assert [path.name for path in tmp_path.glob("new-*")] == ["new-fresh"]
