"""Plugin classes for TensorRT 8.6 and 10: rendered, compiled, and driven through their interfaces with no TensorRT and no GPU.

What is driven is our host (``fakes/trt_host.cpp``) over interfaces declared by hand; the registry check at the end is
NVIDIA's own library, where it is installed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.errors import FormatError, NotAvailableError, ToolkitError
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_meta import Variant
from ytk_forge import build as builds
from ytk_forge import trt_headers
from ytk_forge.audit import audit, read_library, static_checks
from ytk_forge.build import build_plugin
from ytk_forge.probe import registry
from ytk_forge.readiness import State, problems, state
from ytk_forge.render import render_skeleton
from ytk_forge.toolchain import SHIPPED_DIR, TensorRTAbi, Toolchain, find_compiler
from ytk_forge.trt_headers import DECLARED_DIR, find_headers

from fakes import cuda_bundles as bundles
from fakes.forge_toolchains import FAKES, ORIN, SHIPPED, TRT10, TRT86, with_trt
from fakes.kernel_bundles import I64, with_meta

MISSING = problems(TRT10)
needs_nvrtc = pytest.mark.skipif(bool(MISSING), reason=" ".join(MISSING))


@pytest.fixture(scope="module")
def attempt(tmp_path_factory, cache_dir, mode):
    def run(bundle: KernelBundle, toolchain: Toolchain):
        directory = tmp_path_factory.mktemp("trt")
        path = directory / "kernel.module_source.py"
        path.write_text(render_bundle(bundle))
        arch = toolchain.arch_specs()[0]
        return build_plugin(
            path, arch, directory / "out", cache_dir, mode, toolchains=[toolchain]
        ), directory / "out" / "plugin.so"

    return run


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    """Run the host of one interface over a library, under the toolchain's emulator if need be; gives its lines."""
    root = tmp_path_factory.mktemp("host")

    def run(major: int, library: Path, *fields: str, toolchain: Toolchain = TRT10) -> list[str]:
        compiler = find_compiler(toolchain).path
        directory = root / f"{toolchain.host.triple}-{major}"
        host, driver = directory / "host", directory / "libcuda.so.1"
        if not directory.exists():
            directory.mkdir()
            stub = ["-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(FAKES / "fake_libcuda.c")]
            subprocess.run([compiler, *stub, "-o", str(driver)], check=True, timeout=600)
            include = DECLARED_DIR if major >= 10 else FAKES / "trt86"
            flags = ["-std=c++17", "-O0", f"-DMAJOR={major}", f"-I{include}", str(FAKES / "trt_host.cpp"), "-ldl"]
            subprocess.run([compiler, *flags, "-o", str(host)], check=True, timeout=600)
        emulator = toolchain.probe.emulator if toolchain.is_foreign() else []
        done = subprocess.run(
            [*emulator, str(host), str(library), str(driver), *fields],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


BOTH = pytest.mark.parametrize(("major", "toolchain"), [(8, TRT86), (10, TRT10)], ids=["8.6", "10"])
SCALE_FIELDS = ("f:factor:2.5", "i:shift:-7", 's:mode:lin"ear')


@needs_nvrtc
class TestDriven:
    @pytest.mark.parametrize(
        ("major", "toolchain"), [(8, TRT86), (10, TRT10), (8, ORIN)], ids=["8.6", "10", "8.6 for Orin, emulated"]
    )
    def test_from_a_node_to_a_launch(self, attempt, drive, major, toolchain):
        if missing := problems(toolchain):
            pytest.skip(" ".join(missing))
        manifest, library = attempt(bundles.scale(), toolchain)
        assert manifest.ok
        lines = drive(major, library, *SCALE_FIELDS, toolchain=toolchain)
        wanted = [
            "creators 1 yasp::Scale 1",
            "core yasp::Scale 1 outputs 2",
            "formats f32 4 of 4",
            "formats f16 0 of 4",
            "formats i32 0 of 4",
            "formats unknown 0 of 4",
            "shape 5 8",
            "shape 3",
            "wrong arity 1",
            # The largest profile has 40 rows of 16 bytes; the fixed 256 are less.
            "workspace 640",
            "prepare 0",
            "driver load ELF machine 190",
            "driver attribute scale 8 = 65536",
            # The attributes went through serialisation: -7 and 2.5 (0x40200000) are the node's.
            f"launch scale grid 1,1,1 block 128,1,1 shared 65536 stream 0x5ea extra 0 args {0x10000} {0x11000} {0x20000} {0x21000} 40 {0x40200000} -7",
            "enqueue 0",
            "enqueue bad shape 3",
            "enqueue bad type 5",
            "end 0",
        ]
        assert [line for line in wanted if line not in lines] == []
        assert sum(line.startswith("launch") for line in lines) == 1
        logged = "\n".join(line for line in lines if line.startswith("log "))
        assert "plugin yasp::Scale version 1: enqueue: failed with status 3" in logged
        assert "another number of inputs" in logged
        assert ("configure bad 3" in lines) == (major >= 10)

    def test_state_of_another_form_is_refused(self, attempt, drive):
        assert "other states 1 1 1 1" in drive(8, attempt(bundles.scale(), TRT86)[1], *SCALE_FIELDS)
        assert "without state 1" in drive(10, attempt(bundles.scale(), TRT10)[1], *SCALE_FIELDS)

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            (("i:shift:-7", 's:mode:lin"ear'), "factor: the node lacks this attribute"),
            (("i:factor:2", 's:mode:lin"ear'), "factor: the attribute has another type"),
            (("f:factor:2", "f:mode:2"), "mode: the attribute has another type"),
        ],
    )
    @BOTH
    def test_wrong_attributes_make_no_plugin_and_say_why(self, attempt, drive, major, toolchain, fields, says):
        lines = drive(major, attempt(bundles.scale(), toolchain)[1], *fields)
        assert lines[-1] == "created nothing"
        assert any(says in line for line in lines)

    @BOTH
    def test_an_optional_attribute_and_another_value_than_the_baked_one(self, attempt, drive, major, toolchain):
        lines = drive(major, attempt(bundles.scale(), toolchain)[1], "f:factor:1", "s:mode:cubic")
        assert "enqueue 4" in lines, "YTK_BAD_ATTRIBUTE: the kernel was made for one mode"
        assert any("configure: these inputs or attributes are not acceptable: status 4" in line for line in lines)

    @BOTH
    def test_formats_and_types_together(self, attempt, drive, major, toolchain):
        lines = drive(major, attempt(bundles.depthwise(), toolchain)[1])
        found = {line.split()[1]: line.split()[2] for line in lines if line.startswith("formats")}
        assert found == {
            "f32": "2",
            "f16": "0",
            "f16hwc8": "2",
            "i8chw32": "0",
            "i32": "0",
            "i64": "0",
            "unknown": "0",
            "own": "2",
        }
        assert "types of halves 1" in lines
        assert "types of floats 0" in lines
        assert any("launch copy_words grid 1,1,1" in line for line in lines), "variant 1 of 2"

    @BOTH
    def test_int8_with_its_scale_and_int32_beside_it(self, attempt, drive, major, toolchain):
        lines = drive(major, attempt(bundles.quantised(), toolchain)[1])
        assert "formats own 4 of 4" in lines
        assert "formats i8chw32 1 of 4" in lines, "the second tensor is int32, in no other format than linear"
        assert "formats i32 0 of 4" in lines
        assert "enqueue 0" in lines
        # 0.5 / 0.5 + 0.5: both tensors' scales reach the kernel (0x3fc00000 is 1.5).
        (launched,) = [line for line in lines if "launch requantise" in line]
        assert "grid 1,1,1 block 256,1,1" in launched
        *_, count, scale = map(int, launched.rpartition("args ")[2].split())
        # The stand-in for the driver reads every argument as eight bytes.
        assert (count, scale & 0xFFFFFFFF) == (128, 0x3FC00000)


@needs_nvrtc
class TestAudit:
    def test_orin_with_8_6_headers(self, attempt):
        if missing := problems(ORIN):
            pytest.skip(" ".join(missing))
        manifest, library = attempt(bundles.fold(), ORIN)
        found = {check.name: check.found for check in manifest.checks}
        assert manifest.ok
        assert found["registered"] == "IPluginCreator: yasp::Col2im version 1, no attributes"
        assert found["exports"] == "getPluginCreators, setLoggerFinder, ytk_plugin"
        assert read_library(library).machine == "EM_AARCH64"
        assert manifest.tools["tensorrt"] == "TensorRT 8 headers"
        assert any("No GPU ran the kernel" in text for text in manifest.unverified)

    def test_without_headers_it_is_marked(self, attempt):
        manifest, _ = attempt(bundles.scale(), TRT10)
        assert not manifest.target_verified
        assert manifest.mark == " (NOT TARGET-VERIFIED)"
        assert any(text.startswith("Not target-verified") for text in manifest.unverified)
        found = {check.name: check.found for check in manifest.checks}
        assert (
            found["registered"]
            == "PLUGIN CREATOR_V3ONE 1.0: yasp::Scale version 1, factor float32, shift int32, mode char"
        )

    def test_a_library_for_8_6_is_none_for_10(self, attempt, mode):
        """ "getPluginCreators present but not getCreators": TensorRT 10 would register nothing, and say nothing."""
        _, library = attempt(bundles.scale(), TRT86)
        found = static_checks(
            read_library(library), arch=TRT10.arch_specs()[0], toolchain=TRT10, provides=lambda *_: True
        )
        exports = next(check for check in found if check.name == "exports")
        assert not exports.ok
        assert exports.found == "getPluginCreators, setLoggerFinder, ytk_plugin"
        assert exports.wanted == "exactly getCreators, setLoggerFinder, ytk_plugin"

    @BOTH
    def test_a_creator_of_another_name_fails(self, attempt, mode, major, toolchain):
        _, library = attempt(bundles.scale(), toolchain)
        other = msgspec.structs.replace(bundles.scale().meta, plugin_name="Other")
        results = audit(
            library,
            meta=other,
            arch=toolchain.arch_specs()[0],
            toolchain=toolchain,
            compiler=find_compiler(toolchain),
            mode=mode,
        )
        registered = next(check for check in results if check.name == "registered")
        assert not registered.ok
        assert "yasp::Scale version 1" in registered.found
        assert "yasp::Other version 1" in registered.wanted

    def test_a_creator_that_makes_nothing_fails(self, attempt, monkeypatch):
        render = builds.render_skeleton

        def broken(meta, major):
            return render(meta, major).replace("attributes.take(fields) ?", "attributes.take(fields) && false ?")

        monkeypatch.setattr(builds, "render_skeleton", broken)
        with pytest.raises(ToolkitError) as caught:
            attempt(with_meta(bundles.scale(), plugin_version="9"), TRT86)
        assert caught.value.code == "audit_registered"
        assert "it makes no plugin of these attributes" in caught.value.message

    @pytest.mark.skipif(bool(registry.why_not(TRT10)), reason=registry.why_not(TRT10))
    def test_the_real_registry(self, attempt, mode):
        manifest, library = attempt(bundles.scale(), TRT10)
        check = next(check for check in manifest.checks if check.name == "registry")
        assert check.found == "only yasp::Scale version 1 (factor 1, shift 5, mode 6)"
        compiler = find_compiler(TRT10)
        other = msgspec.structs.replace(bundles.scale().meta, plugin_namespace="other")
        wrong = registry.check_registry(library, other, TRT10, compiler, mode=mode)
        assert not wrong.ok
        assert "yasp::Scale version 1" in wrong.found
        none = registry.check_registry(
            attempt(bundles.scale(), TRT86)[1], bundles.scale().meta, TRT10, compiler, mode=mode
        )
        assert not none.ok, "the registry of 10 finds nothing in a plugin for 8.6"


HOPPER, REAL_THOR = SHIPPED["amd64-sm90-linux-cu130-trt1014"], SHIPPED["arm64-sm110-linux-cu130-trt1014"]


class TestRealHeaders:
    """Compiled against NVIDIA's own headers; nothing of it is declared by hand."""

    @pytest.fixture(autouse=True)
    def _headers(self, request):
        toolchain = request.getfixturevalue("toolchain") if "toolchain" in request.fixturenames else HOPPER
        if missing := problems(toolchain):
            pytest.skip(" ".join(missing))

    @pytest.mark.parametrize("bundle", [bundles.scale, bundles.quantised], ids=lambda make: make.__name__)
    def test_every_form_of_plugin_compiles_and_is_registered(self, attempt, bundle):
        manifest, _ = attempt(bundle(), HOPPER)
        assert manifest.tools["tensorrt"] == "TensorRT 10.14.1 headers of kernel-lens==2.0.1"
        assert manifest.target_verified
        found = {check.name: check for check in manifest.checks}
        assert found["registered"].ok
        if not registry.why_not(HOPPER):
            assert found["registry"].ok

    def test_headers_of_another_minor_version_mark_the_plugin(self, attempt):
        include = find_headers(HOPPER).include_dir
        older = with_trt(HOPPER, version="10.3", include_dir=include)
        manifest, _ = attempt(bundles.scale(), older)
        assert not manifest.target_verified
        assert "headers of TensorRT 10.14.1, the target has 10.3" in manifest.unseen[0]

    @pytest.mark.parametrize("toolchain", [HOPPER, REAL_THOR], ids=["x86-64", "Thor, emulated"])
    def test_what_we_declare_by_hand_is_what_the_headers_say(self, attempt, drive, toolchain):
        """A host of the declared interface drives a plugin of the real one from node to launch: a slot out of place would crash."""
        lines = drive(10, attempt(bundles.scale(), toolchain)[1], *SCALE_FIELDS, toolchain=toolchain)
        for line in (
            "core yasp::Scale 1 outputs 2",
            "formats f32 4 of 4",
            "shape 5 8",
            "workspace 640",
            "enqueue 0",
            "end 0",
        ):
            assert line in lines


class TestForeignRegistry:
    """The registry of another machine's TensorRT: asked by a program of ours, under the emulator where the machine is another one."""

    @pytest.mark.skipif(
        bool(registry.why_not(HOPPER) or problems(HOPPER)),
        reason=registry.why_not(HOPPER) or " ".join(problems(HOPPER)),
    )
    def test_our_program_says_what_tensorrts_python_package_says(self, attempt, mode, cache_dir):
        _, library = attempt(bundles.scale(), HOPPER)
        compiler, meta = find_compiler(HOPPER), bundles.scale().meta
        for asked in (meta, msgspec.structs.replace(meta, plugin_namespace="other")):
            by_python = registry.check_registry(library, asked, HOPPER, compiler, mode=mode)
            by_program = registry.check_registry(
                library, asked, HOPPER, compiler, mode=mode, cache_dir=cache_dir, native=True
            )
            assert by_program == by_python
        assert not by_program.ok
        (library.parent / "text.so").write_text("no library")
        broken = registry.check_registry(
            library.parent / "text.so", meta, HOPPER, compiler, mode=mode, cache_dir=cache_dir, native=True
        )
        assert (broken.ok, broken.found) == (False, "no creator; and get_creator does not find it")

    def test_says_what_is_missing(self, tmp_path):
        def why(path: str) -> str:
            probe = msgspec.structs.replace(REAL_THOR.probe, registry=path)
            return registry.why_not(msgspec.structs.replace(REAL_THOR, probe=probe))

        assert "probe.registry names none of aarch64" in why("")
        assert why(str(tmp_path)) == f"no libnvinfer_lean.so.10 in probe.registry = {tmp_path}"
        (tmp_path / "tensorrt_lean_libs").mkdir()
        (tmp_path / "tensorrt_lean_libs" / "libnvinfer_lean.so.10").touch()
        assert why(str(tmp_path)) == ("" if trt_headers.real_headers(REAL_THOR) else why(str(tmp_path)))
        assert "8.6" in registry.why_not(ORIN)

    def test_another_library_is_another_key_of_the_cache(self, tmp_path):
        libs = tmp_path / "tensorrt_lean_libs"
        libs.mkdir()
        probe = msgspec.structs.replace(REAL_THOR.probe, registry=str(tmp_path))
        toolchain = msgspec.structs.replace(REAL_THOR, probe=probe)
        found = [registry.identity(toolchain)]
        for size in (1, 2):
            (libs / "libnvinfer_lean.so.10").write_bytes(b"x" * size)
            found.append(registry.identity(toolchain))
        assert len({str(each) for each in found}) == 3


class TestRendered:
    @pytest.mark.parametrize("major", [8, 10])
    def test_nothing_registers_itself(self, major):
        text = (
            render_skeleton(bundles.scale().meta, major)
            + (SHIPPED_DIR.parent / "templates" / "trt_common.h").read_text()
        )
        assert not re.search(r"REGISTER_TENSORRT_PLUGIN|getPluginRegistry|registerCreator", text)

    def test_types_that_the_engine_lacks(self):
        meta = with_meta(bundles.fold(), variants=[Variant(id="i64", inputs=[I64], outputs=[I64])]).meta
        assert "IPluginV3" in render_skeleton(meta, 10)
        with pytest.raises(FormatError) as caught:
            render_skeleton(meta, 8)
        assert caught.value.code == "no_variant_for_engine"
        assert "int64" in caught.value.message


class TestHeaders:
    @pytest.mark.parametrize("name", sorted(SHIPPED))
    def test_without_them_the_build_is_refused_and_says_what_to_set(self, name, monkeypatch):
        monkeypatch.setattr(trt_headers, "_packaged", lambda _package: None)
        with pytest.raises(NotAvailableError) as caught:
            find_headers(SHIPPED[name])
        assert caught.value.code == "tensorrt_headers_missing"
        assert "tensorrt.include_dir is empty" in caught.value.message
        assert f'extends = "{name}"' in caught.value.hint
        assert 'include_dir = "/path/to/include"' in caught.value.hint
        assert ('abi = "declared"' in caught.value.hint) == ("trt86" not in name)
        assert ("build-plugin --declared-abi" in caught.value.hint) == ("trt86" not in name)
        assert ("pip install --no-deps kernel-lens==" in caught.value.hint) == name.endswith("trt1014")
        assert any("tensorrt.include_dir is empty" in text for text in problems(SHIPPED[name]))

    def test_8_6_has_no_way_round(self):
        orin = SHIPPED["arm64-sm87-dos6010-cu114-trt86"]
        with pytest.raises(NotAvailableError):
            find_headers(with_trt(orin, abi=TensorRTAbi.DECLARED))
        with pytest.raises(NotAvailableError):
            find_headers(orin, declared=True)
        assert state(orin) is State.NOT_READY

    def test_a_build_that_asks_for_it_gets_the_declared_interface(self):
        jetson = SHIPPED["arm64-sm87-l4t364-cu126-trt103"]
        found = find_headers(jetson, declared=True)
        assert found is not None
        assert (found.declared, found.include_dir) == (True, str(DECLARED_DIR))

    def test_an_sdk_comes_before_everything(self, tmp_path):
        (tmp_path / "NvInferRuntime.h").write_text("#define NV_TENSORRT_MAJOR 10\n")
        found = find_headers(with_trt(TRT10, include_dir=str(tmp_path)), declared=True)
        assert found is not None
        assert (found.declared, found.include_dir) == (False, str(tmp_path))

    def test_a_package_counts_only_with_the_very_headers_that_are_known(self, tmp_path, monkeypatch):
        include = tmp_path / "some_package" / "include"
        include.mkdir(parents=True)
        (tmp_path / "some_package" / "__init__.py").write_text("raise SystemExit('imported')")
        for name in trt_headers._INCLUDED:
            (include / name).write_text(f"// {name}\n")
        (include / "NvInferVersion.h").write_text("#define NV_TENSORRT_MAJOR 10\n#define NV_TENSORRT_MINOR 13\n")
        monkeypatch.syspath_prepend(tmp_path)
        package = trt_headers.PackagedHeaders(
            version="10.13",
            requirement="some-package==1",
            module="some_package",
            directory="include",
            digest=str(trt_headers.included_digest(include)),
        )
        monkeypatch.setattr(trt_headers, "PACKAGED", (package,))
        found = find_headers(TRT10)
        assert found is not None
        assert (found.banner, found.declared) == ("TensorRT 10.13 headers of some-package==1", False)
        trt_headers._packaged.cache_clear()
        (include / "NvInferRuntimePlugin.h").write_text("// another interface\n")
        found = find_headers(TRT10)
        assert found is not None
        assert found.declared, "TRT10 asks for the declared interface where there is nothing better"

    def test_a_directory_without_them_and_those_of_another_version(self, tmp_path):
        with pytest.raises(NotAvailableError, match=r"no NvInferRuntime\.h in"):
            find_headers(with_trt(TRT10, include_dir=str(tmp_path)))
        (tmp_path / "NvInferRuntime.h").write_text('#include "NvInferVersion.h"\n')
        (tmp_path / "NvInferVersion.h").write_text(
            "#define NV_TENSORRT_MAJOR 8\n#define NV_TENSORRT_MINOR 6\n#define NV_TENSORRT_PATCH 10\n"
        )
        with pytest.raises(NotAvailableError) as caught:
            find_headers(with_trt(TRT10, include_dir=str(tmp_path)))
        assert caught.value.code == "tensorrt_headers_wrong"
        assert "are of TensorRT 8.6.10" in caught.value.message
        (tmp_path / "NvInferVersion.h").write_text("#define TRT_MAJOR_ENTERPRISE 10\n#define TRT_MINOR_ENTERPRISE 14\n")
        found = find_headers(with_trt(TRT10, include_dir=str(tmp_path)))
        assert (found.banner, found.declared) == ("TensorRT 10.14 headers", False)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_files_serve_the_arch_spec_they_are_named_after(name):
    assert SHIPPED[name].mismatches(ArchSpec.parse(name)) == ()
    assert ArchSpec.parse(name) in SHIPPED[name].arch_specs()
