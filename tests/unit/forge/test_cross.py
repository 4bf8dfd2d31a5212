"""Cross-compiled libraries: built here for another machine, held to its symbol versions, probed under its emulator."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.errors import CandidateError, NotAvailableError, UserError
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_forge import build as builds
from ytk_forge.audit import CHECKS, read_library
from ytk_forge.build import build_plugin
from ytk_forge.probe import run as probe_run
from ytk_forge.probe.run import run_probe
from ytk_forge.readiness import problems
from ytk_forge.toolchain import SHIPPED_DIR, find_compiler, load_toolchain, toolchain_for

from fakes import kernel_bundles as bundles

ARCH = ArchSpec.parse("arm64-cpu80-linux-glibc231-ov20252")
MISSING = problems(toolchain_for(ARCH))
needs_cross = pytest.mark.skipif(bool(MISSING), reason=" ".join(MISSING))


@pytest.fixture
def attempt(tmp_path, cache_dir, mode):
    def run(bundle: KernelBundle, arch: ArchSpec = ARCH):
        path = tmp_path / "kernel.module_source.py"
        path.write_text(render_bundle(bundle))
        return build_plugin(path, arch, tmp_path / "out", cache_dir, mode)

    return run


def added(text: str) -> KernelBundle:
    """The Fold kernel and more."""
    return bundles.with_source(bundles.fold(), bundles.fold().source + text)


@needs_cross
class TestArm64:
    @pytest.mark.parametrize("make", [bundles.fold])
    def test_builds_and_passes_every_check(self, attempt, tmp_path, make):
        manifest = attempt(make())
        assert manifest.ok
        assert tuple(check.name for check in manifest.checks) == CHECKS
        assert manifest.toolchain == "arm64-linux-gcc"
        assert "-march=armv8-a" in manifest.tools["flags"]
        library = read_library(tmp_path / "out" / "plugin.so")
        assert (library.machine, library.elf_class) == ("EM_AARCH64", 64)

    def test_levels_differ_in_flags(self, attempt):
        newer = ArchSpec(ARCH.cpu, "cpu82", ARCH.os, ARCH.runtime, ARCH.engine)
        assert "-march=armv8.2-a+fp16+dotprod" in attempt(bundles.fold(), newer).tools["flags"]

    def test_a_function_that_the_targets_libc_lacks_is_refused(self, attempt):
        """The cross compiler's own glibc has it, so only the symbol version tells."""
        bundle = added(
            '\n#include <pthread.h>\nextern "C" int oops(pthread_t t) { return pthread_join(t, nullptr); }\nvoid* keep = (void*)oops;'
        )
        with pytest.raises(CandidateError) as caught:
            attempt(bundle)
        assert caught.value.code == "audit_glibc"
        assert "found GLIBC_2.34 of libc.so.6; wanted at most GLIBC_2.31" in caught.value.message
        newer = ArchSpec(ARCH.cpu, ARCH.device, ARCH.os, "glibc236", ARCH.engine)
        assert attempt(bundle, newer).ok

    # What std::vector calls in the headers of GCC 11 and later.
    GROWS = "\n#include <vector>\nlong grow(std::vector<long>& v, long n) { v.resize(n); v.push_back(n); std::vector<long> w(v); return w.back(); }\nvoid* keep = (void*)grow;"

    def test_std_vector_works_on_an_old_libstdcxx(self, attempt):
        assert attempt(added(self.GROWS)).ok

    def test_and_would_not_without_what_forge_adds(self, attempt, monkeypatch):
        render = builds.render_table
        monkeypatch.setattr(builds, "render_table", lambda meta, **_: render(meta))
        with pytest.raises(CandidateError) as caught:
            attempt(added(self.GROWS + "\n// another text: no cached build"))
        assert caught.value.code == "audit_glibcxx"
        assert "GLIBCXX_3.4.29" in caught.value.message

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (
                "\n#include <cstdlib>\n__attribute__((constructor)) void dies() { std::abort(); }",
                "found the loading process ended with",
            ),
            (
                "\n__attribute__((constructor)) void leaves() { __builtin_trap(); }",
                "found the loading process ended with",
            ),
        ],
    )
    def test_the_emulator_really_loads_it(self, attempt, text, says):
        with pytest.raises(CandidateError) as caught:
            attempt(added(text))
        assert caught.value.code == "audit_load"
        assert says in caught.value.message

    def test_a_library_of_the_build_machine_is_refused(self, build, attempt, compiler, mode):
        from ytk_forge.audit import audit

        _, out = build(bundles.fold())
        toolchain = toolchain_for(ARCH)
        found = audit(
            out / "plugin.so",
            meta=bundles.fold().meta,
            arch=ARCH,
            toolchain=toolchain,
            compiler=find_compiler(toolchain),
            mode=mode,
        )
        machine = next(result for result in found if result.name == "machine")
        assert (machine.ok, machine.found, machine.wanted) == (False, "EM_X86_64, 64 bit", "EM_AARCH64, 64 bit")
        assert [result.name for result in found][-1] != "load", "it is not loaded"


@pytest.mark.parametrize("make", [bundles.fold, bundles.split, bundles.gather])
def test_both_probe_programs_give_the_same_answers(build, toolchain, compiler, mode, cache_dir, make):
    _, out = build(make())
    answers = [
        run_probe(out / "plugin.so", make().meta, toolchain, compiler, mode=mode, native=native, cache_dir=cache_dir)
        for native in (False, True)
    ]
    assert answers[0].table is not None, answers[0].problem
    assert answers[0].cases
    assert answers[1] == answers[0]


def test_the_native_probe_says_why_a_library_does_not_load(tmp_path, toolchain, compiler, mode, cache_dir):
    (tmp_path / "x.cpp").write_text("int nothing;")
    subprocess.run(["g++", "-shared", "-fPIC", "x.cpp", "-o", "x.so"], cwd=tmp_path, check=True, timeout=600)
    for file in ("x.so", "x.cpp"):
        answer = run_probe(
            tmp_path / file, bundles.fold().meta, toolchain, compiler, mode=mode, native=True, cache_dir=cache_dir
        )
        assert answer.table is None
        assert answer.problem
    assert (
        "ytk_plugin"
        in run_probe(
            tmp_path / "x.so", bundles.fold().meta, toolchain, compiler, mode=mode, native=True, cache_dir=cache_dir
        ).problem
    )


def test_the_probe_program_is_compiled_once_and_again_when_its_text_changes(
    tmp_path, toolchain, compiler, mode, monkeypatch
):
    made: list[dict[str, bytes]] = []

    def compile_probe(sources, *_):
        made.append(sources)
        return f"program {len(made)}".encode()

    monkeypatch.setattr(probe_run, "_compile_probe", compile_probe)
    ask = functools.partial(probe_run._native_probe, toolchain, compiler, mode, tmp_path)
    assert [ask(), ask()] == [b"program 1"] * 2
    changed = tmp_path / "native"
    changed.mkdir()
    (changed / "probe.cpp").write_text("// changed")
    monkeypatch.setattr(probe_run, "_NATIVE", changed)
    assert ask() == b"program 2"
    assert probe_run._native_probe(toolchain, compiler, mode, None) == b"program 3", "nothing is kept without a cache"
    assert set(made[0]) == {"probe.cpp", "NvInferRuntime.h", "ytk_kernel.h"}


class TestMissing:
    def test_says_what_to_install(self, attempt, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NotAvailableError) as caught:
            attempt(bundles.fold())
        assert caught.value.code == "compiler_missing"
        assert "scripts/install_cross.sh" in caught.value.hint

    @pytest.mark.parametrize(
        ("emulator", "says"), [("[]", "probe.emulator is empty"), ('["no-such-qemu"]', "no emulator no-such-qemu")]
    )
    def test_emulator(self, tmp_path, emulator, says):
        text = (SHIPPED_DIR / "arm64-linux-gcc.toml").read_text()
        path = tmp_path / "t.toml"
        path.write_text(text.replace('["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]', emulator))
        assert any(says in text for text in problems(load_toolchain(path))) or MISSING

    def test_an_emulator_is_not_wanted_where_the_machine_is_the_targets(self, toolchain):
        assert not toolchain.is_foreign()


def test_the_install_script_is_valid_shell_and_does_nothing_twice():
    script = Path(__file__).parents[3] / "scripts" / "install_cross.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=600)
    if shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64"):
        done = subprocess.run(["bash", str(script)], check=True, capture_output=True, text=True, timeout=600)
        assert "are there" in done.stdout


def test_a_level_of_another_cpu_is_no_arch_spec():
    with pytest.raises(UserError):
        ArchSpec.parse("arm64-cpuv3-linux-glibc231-ov20252")
