"""Every audit check, seen to fail on a seeded fault; each fault is a library that really has it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.errors import BoardError, CandidateError, ToolkitError
from ytk_core.formats.kernel_bundle import translation_unit
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import (
    AttributeDecl,
    AttributeType,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    Variant,
)
from ytk_forge import audit as audits
from ytk_forge.audit import CHECKS, NotElfError, raise_on_failure, read_library, static_checks, symbol_finder
from ytk_forge.compile import Units, compile_plugin
from ytk_forge.probe import run as probe_run
from ytk_forge.render import render_table

from fakes import kernel_bundles as bundles

SEEN: set[str] = set()
"""Checks that failed at least once; the last test of this file wants all of them."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory, arch, toolchain, compiler, mode) -> Path:
    """The Fold bundle compiled: kernel.o, plugin.o, exports.map, and the good plugin.so."""
    workdir = tmp_path_factory.mktemp("objects")
    bundle = bundles.fold()
    compile_plugin(
        Units(kernel=translation_unit(bundle), table=render_table(bundle.meta)),
        toolchain=toolchain,
        compiler=compiler,
        arch=arch,
        extra_flags=(),
        workdir=workdir,
        mode=mode,
        log=lambda _: None,
    )
    return workdir


@pytest.fixture
def link(objects, tmp_path) -> Callable[..., Path]:
    """Link the objects by hand: with more flags or text, without what Forge adds."""

    def run(*flags: str, extra: str = "", script: bool = True) -> Path:
        output = tmp_path / "faulty.so"
        source = tmp_path / "extra.cpp"
        source.write_text(extra)
        version_script = ["-Wl,--version-script=exports.map"] if script else []
        command = ["g++", "-shared", "-fPIC", "-fopenmp", "-Wl,--as-needed", "kernel.o", "plugin.o", str(source)]
        subprocess.run([*command, *version_script, *flags, "-o", str(output)], cwd=objects, check=True, timeout=600)
        return output

    return run


@pytest.fixture
def check(arch, toolchain, compiler, mode) -> Callable[..., dict[str, CheckResult]]:
    """Audit a library; gives the results by name."""

    def run(library: Path, meta: PluginMeta | None = None, for_arch: ArchSpec = arch) -> dict[str, CheckResult]:
        results = audits.audit(
            library,
            meta=meta or bundles.fold().meta,
            arch=for_arch,
            toolchain=toolchain,
            compiler=compiler,
            mode=mode,
        )
        return {result.name: result for result in results}

    return run


def failed(results: dict[str, CheckResult]) -> set[str]:
    names = {name for name, result in results.items() if not result.ok}
    for name in names:
        assert results[name].found, name
        assert results[name].wanted, name
        assert results[name].fix, name
    SEEN.update(names)
    return names


def test_a_good_library_passes_every_check(check, objects):
    results = check(objects / "plugin.so")
    assert failed(results) == set()
    assert tuple(results) == CHECKS
    assert all(result.fix == "" for result in results.values())


class TestFile:
    def test_text_is_no_library(self, check, tmp_path):
        path = tmp_path / "a.so"
        path.write_text("#!/bin/sh\n")
        assert failed(check(path)) == {"elf"}

    def test_object_file(self, check, objects):
        results = check(objects / "kernel.o")
        assert failed(results) == {"elf"}
        assert "ET_REL" in results["elf"].found

    @pytest.mark.parametrize("keep", [0, 4, 64, 2000, 9000, 15000])
    def test_truncated(self, objects, tmp_path, keep, check):
        path = tmp_path / "a.so"
        path.write_bytes((objects / "plugin.so").read_bytes()[:keep])
        assert failed(check(path))

    @pytest.mark.parametrize("seed", range(15))
    def test_damaged_bytes_never_crash_the_reader(self, objects, tmp_path, seed):
        import random

        rng = random.Random(seed)
        content = bytearray((objects / "plugin.so").read_bytes())
        for _ in range(30):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path = tmp_path / "a.so"
        path.write_bytes(content)
        # Another exception would be a crash of the audit.
        with contextlib.suppress(NotElfError):
            read_library(path)

    def test_other_machine(self, objects, tmp_path, check):
        content = bytearray((objects / "plugin.so").read_bytes())
        content[18:20] = (183).to_bytes(2, "little")
        path = tmp_path / "a.so"
        path.write_bytes(content)
        results = check(path)
        assert failed(results) == {"machine"}
        assert (results["machine"].found, results["machine"].wanted) == ("EM_AARCH64, 64 bit", "EM_X86_64, 64 bit")
        assert "load" not in results, "a library that fails a static check must not be loaded"

    def test_extra_needed(self, link, check):
        results = check(link("-Wl,--no-as-needed", "-l:libdl.so.2"))
        assert failed(results) == {"needed"}
        assert results["needed"].found == "libdl.so.2"

    def test_rpath_and_runpath(self, link, check):
        results = check(link("-Wl,-rpath,/opt/evil"))
        assert failed(results) == {"search_path"}
        assert results["search_path"].found == "DT_RUNPATH"
        assert failed(check(link("-Wl,-rpath,/opt/evil", "-Wl,--disable-new-dtags"))) == {"search_path"}

    def test_audit_library_tag(self, link, check):
        assert failed(check(link("-Wl,--audit=/opt/evil.so"))) == {"search_path"}

    def test_executable_stack(self, link, check):
        results = check(link("-Wl,-z,execstack"))
        assert failed(results) == {"exec_stack"}

    def test_text_relocation(self, link, check):
        text = 'asm(".text\\n.globl yes\\nyes: .quad yes_data\\n.data\\nyes_data: .quad 0\\n.text\\n");'
        assert failed(check(link("-Wl,-z,notext", extra=text))) == {"textrel"}


class TestSymbols:
    def test_extra_export(self, link, check):
        text = 'extern "C" __attribute__((visibility("default"))) int peek() { return 1; }'
        results = check(link(extra=text, script=False))
        assert failed(results) == {"exports"}
        assert "peek" in results["exports"].found

    def test_missing_export(self, objects, tmp_path, check):
        script = tmp_path / "none.map"
        script.write_text("{ local: *; };\n")
        path = tmp_path / "a.so"
        command = ["g++", "-shared", "-fopenmp", "-Wl,--as-needed", f"-Wl,--version-script={script}"]
        subprocess.run([*command, "kernel.o", "plugin.o", "-o", str(path)], cwd=objects, check=True, timeout=600)
        results = check(path)
        assert failed(results) == {"exports"}
        assert results["exports"].found == "nothing"

    def test_undefined_symbol(self, link, check):
        text = 'extern "C" int nowhere(); extern "C" int use() { return nowhere(); } int (*keep)() = use;'
        results = check(link(extra=text))
        assert failed(results) == {"undefined"}
        assert results["undefined"].found == "nowhere"

    def test_weak_undefined_symbol_is_allowed(self, link, check):
        text = 'extern "C" __attribute__((weak)) int maybe(); extern "C" int use() { return maybe ? maybe() : 0; } int (*keep)() = use;'
        assert failed(check(link(extra=text))) == set()

    def test_newer_glibc(self, link, check, arch):
        text = "#include <cmath>\nvolatile double x = 2; double use() { return std::exp(x); } double (*keep)() = use;"
        library = link(extra=text)
        old = with_runtime(arch, "glibc228")
        results = check(library, for_arch=old)
        assert failed(results) == {"glibc"}
        assert results["glibc"].found == "GLIBC_2.29 of libm.so.6"
        assert results["glibc"].wanted == "at most GLIBC_2.28"
        assert failed(check(library, for_arch=with_runtime(arch, "glibc229"))) == set()

    def test_newer_glibcxx(self, link, check, arch):
        text = (
            "#include <charconv>\nvolatile double x = 2;\n"
            "double use() { double y = x; char t[] = {'1'}; std::from_chars(t, t + 1, y); return y; } double (*keep)() = use;"
        )
        results = check(link(extra=text), for_arch=with_runtime(arch, "glibc231"))
        assert "glibcxx" in failed(results)
        assert results["glibcxx"].found == "GLIBCXX_3.4.29 of libstdc++.so.6"

    @pytest.mark.parametrize("version", ["GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBC_2.9999"])
    def test_versions_that_are_no_number_or_absurd(self, objects, arch, toolchain, compiler, version):
        library = msgspec.structs.replace(read_library(objects / "plugin.so"), versions=(("libc.so.6", version),))
        old = with_runtime(arch, "glibc231")
        results = static_checks(library, arch=old, toolchain=toolchain, provides=symbol_finder(compiler))
        assert failed({r.name: r for r in results}) == {"glibc"}

    def test_a_library_that_is_not_here_cannot_vouch(self, objects, arch, toolchain):
        library = read_library(objects / "plugin.so")
        library = msgspec.structs.replace(library, undefined=library.undefined | {"mystery"})
        results = {r.name: r for r in static_checks(library, arch=arch, toolchain=toolchain, provides=lambda *_: None)}
        assert "undefined" in failed(results)
        assert "not on this machine: libgomp.so.1" in results["undefined"].found


def with_runtime(arch: ArchSpec, runtime: str) -> ArchSpec:
    return ArchSpec(arch.cpu, arch.device, arch.os, runtime, arch.engine)


class TestLoading:
    @pytest.mark.parametrize(
        ("body", "says"),
        [
            ("std::abort();", "signal 6"),
            ("*(volatile int*)8 = 1;", "signal 11"),
            ("std::_Exit(0);", "exit code 0 and no answer"),
            ("std::_Exit(7);", "exit code 7"),
        ],
    )
    def test_static_initialiser_that_ends_the_process(self, link, check, body, says):
        text = f"#include <cstdlib>\n__attribute__((constructor)) void boom() {{ {body} }}"
        results = check(link(extra=text))
        assert failed(results) == {"load"}
        assert says in results["load"].found

    def test_static_initialiser_that_never_returns(self, link, check, monkeypatch):
        monkeypatch.setattr(probe_run, "PROBE_LIMIT_S", 1.0)
        text = "volatile int on = 1; __attribute__((constructor)) void boom() { while (on) {} }"
        results = check(link(extra=text))
        assert failed(results) == {"load"}
        assert "within 1 s" in results["load"].found or "signal" in results["load"].found

    def test_a_forged_answer_is_still_compared(self, link, check):
        text = r"""
        #include <cstdio>
        #include <cstdlib>
        __attribute__((constructor)) void forge() {
          FILE* f = std::fopen("answer.json", "w");
          std::fputs("{\"table\": {\"size\": 1}}", f); std::fclose(f); std::_Exit(0);
        }"""
        assert failed(check(link(extra=text))) == {"load"}

    def test_a_huge_answer_is_not_read(self, link, check):
        text = r"""
        #include <cstdio>
        #include <cstdlib>
        __attribute__((constructor)) void forge() {
          FILE* f = std::fopen("answer.json", "w");
          for (int k = 0; k < 2000000; ++k) std::fputs("[", f);
          std::fclose(f); std::_Exit(0);
        }"""
        assert failed(check(link(extra=text))) == {"load"}

    @pytest.mark.parametrize(
        ("entry", "says"),
        [
            ("return nullptr;", "returned NULL"),
            ("static ytk_plugin_table t{}; t.size = sizeof t; t.abi_version = 2; return &t;", "ABI 2"),
            ("static ytk_plugin_table t{}; t.size = 8; t.abi_version = 1; return &t;", "table of 8 bytes"),
        ],
    )
    def test_another_table(self, objects, tmp_path, check, entry, says):
        source = tmp_path / "entry.cpp"
        source.write_text(
            f'#include "ytk_kernel.h"\nextern "C" YTK_EXPORT const ytk_plugin_table* ytk_plugin() {{ {entry} }}'
        )
        path = tmp_path / "a.so"
        command = ["g++", "-shared", "-fPIC", f"-I{objects}", "-fvisibility=hidden", str(source), "-Wl,--as-needed"]
        subprocess.run([*command, "-o", str(path)], check=True, timeout=600)
        results = check(path)
        assert failed(results) == {"load"}
        assert says in results["load"].found

    def test_the_initialiser_sees_no_file_of_this_machine(self, link, check, tmp_path, mode):
        if mode != "required":
            pytest.skip("no sandbox on this machine")
        secret = tmp_path / "secret"
        secret.write_text("s3cret")
        text = f"""
        #include <cstdio>
        #include <cstdlib>
        __attribute__((constructor)) void peek() {{ if (std::fopen("{secret}", "r")) std::_Exit(99); }}"""
        assert failed(check(link(extra=text))) == set()


class TestTable:
    """The library of one meta, audited against another that differs in one thing."""

    def expect(self, check, objects, name: str, **changes: Any) -> CheckResult:
        meta = msgspec.structs.replace(bundles.fold().meta, **changes)
        results = check(objects / "plugin.so", meta)
        # The digest covers the whole contract, so it differs each time.
        assert failed(results) == {name, "meta_digest"}
        return results[name]

    def test_name(self, check, objects):
        result = self.expect(check, objects, "name", plugin_name="Col2Im")
        assert (result.found, result.wanted) == ("yasp::Col2im version 1", "yasp::Col2Im version 1")

    def test_namespace(self, check, objects):
        assert self.expect(check, objects, "name", plugin_namespace="abc").wanted == "abc::Col2im version 1"

    def test_version(self, check, objects):
        self.expect(check, objects, "name", plugin_version="2")

    def test_variants(self, check, objects):
        self.expect(
            check, objects, "variants", variants=[Variant(id="f16", inputs=[bundles.F32], outputs=[bundles.F32])]
        )
        types = Variant(id="f32", inputs=[bundles.F16], outputs=[bundles.F32])
        self.expect(check, objects, "variants", variants=[types])

    def test_attributes(self, check, objects):
        self.expect(
            check, objects, "attributes", attributes=[AttributeDecl(name="k", type=AttributeType.INTS, required=False)]
        )

    def test_functions(self, check, objects):
        self.expect(check, objects, "functions", launcher=Launcher(fixed_workspace_bytes=64))

    def test_shape(self, check, objects):
        outputs = [OutputDecl(name="output", rank=4, shape=["in0.d0 + 1", "4", "8", "8"])]
        result = self.expect(check, objects, "shape", outputs=outputs)
        assert "[[3, 4, 8, 8]]" in result.wanted

    def test_arity(self, check, objects):
        decl = InputDecl(name="more", rank=1, dims=[None])
        meta = msgspec.structs.replace(
            bundles.fold().meta,
            inputs=[*bundles.fold().meta.inputs, decl],
            variants=[Variant(id="f32", inputs=[bundles.F32, bundles.F32], outputs=[bundles.F32])],
        )
        assert {"arity", "variants", "meta_digest"} <= failed(check(objects / "plugin.so", meta))

    def test_abi(self, check, objects, monkeypatch):
        from ytk_core.abi import ctypes_abi

        monkeypatch.setattr(ctypes_abi, "ABI_VERSION", 2)
        assert failed(check(objects / "plugin.so")) == {"abi"}


class TestBlame:
    @pytest.mark.parametrize(
        ("name", "kind"), [("undefined", CandidateError), ("needed", BoardError), ("name", ToolkitError)]
    )
    def test_the_first_failed_check_decides_who_acts(self, name, kind):
        bad = CheckResult(name=name, ok=False, found="this", wanted="that", fix="Do it.")
        good = CheckResult(name="elf", ok=True, found="x", wanted="x")
        later = CheckResult(name="load", ok=False, found="crash", wanted="loads", fix="Mend it.")
        with pytest.raises(kind) as caught:
            raise_on_failure([good, bad, later], "yasp::X for here")
        assert caught.value.code == f"audit_{name}"
        assert caught.value.hint == "Do it."
        assert f"{name}: found this; wanted that" in caught.value.message
        assert "load: found crash" in caught.value.message

    def test_nothing_failed(self):
        raise_on_failure([CheckResult(name="elf", ok=True, found="x", wanted="x")], "yasp::X")


def test_every_check_was_seen_to_fail(request):
    here = {item.nodeid for item in request.session.items if item.path == request.path}
    if len(here) < 60:
        pytest.skip("only a part of this file is run")
    assert set(CHECKS) == SEEN
