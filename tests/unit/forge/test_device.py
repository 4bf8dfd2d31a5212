"""CUDA bundles: one text through two compilers, the cubin in the library, and its launches as a driver sees them."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ytk_core.abi.ctypes_abi import Attr, Context, Table, Tensor, load_table
from ytk_core.archspec import ArchSpec
from ytk_core.cuda.cubin import Cubin, KernelUse, NotCubinError, read_cubin, with_compiler_notes
from ytk_core.cuda.nvrtc import find_nvrtc
from ytk_core.cuda.occupancy import occupancy
from ytk_core.cuda_build import device_flags, launcher_flags
from ytk_core.errors import CandidateError, NotAvailableError, UserError
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_manifest import PluginManifest
from ytk_forge import audit as audits
from ytk_forge.build import build_plugin
from ytk_forge.device import checks
from ytk_forge.device.checks import device_checks, read_device_sections
from ytk_forge.device.compiler import find_device_compiler
from ytk_forge.readiness import problems
from ytk_forge.toolchain import DeviceCode, Toolchain

from fakes import cuda_bundles as bundles
from fakes.forge_toolchains import ORIN, THOR, TRT10
from fakes.kernel_bundles import with_meta, with_source

FAKE = Path(__file__).parents[2] / "fakes" / "fake_libcuda.c"


HERE = TRT10
MISSING = problems(HERE)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=" ".join(MISSING))


def spec(toolchain: Toolchain) -> ArchSpec:
    return toolchain.arch_specs()[0]


Attempt = Callable[..., tuple[PluginManifest, Path]]


@pytest.fixture(scope="module")
def attempt(tmp_path_factory, cache_dir, mode) -> Attempt:
    def run(bundle: KernelBundle, toolchain: Toolchain = HERE) -> tuple[PluginManifest, Path]:
        directory = tmp_path_factory.mktemp("cuda")
        path = directory / "kernel.module_source.py"
        path.write_text(render_bundle(bundle))
        manifest = build_plugin(path, spec(toolchain), directory / "out", cache_dir, mode, toolchains=[toolchain])
        return manifest, directory / "out" / "plugin.so"

    return run


@pytest.fixture(scope="module")
def library(attempt) -> Path:
    return attempt(bundles.fold())[1]


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> ctypes.CDLL:
    """The remembering driver; under the name that plugins need, so the loader finds no other."""
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(FAKE), "-o", str(path)]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


class TestBuild:
    def test_every_check_passes(self, attempt):
        manifest, library = attempt(bundles.fold())
        found = {check.name: check.found for check in manifest.checks}
        assert manifest.ok
        assert {*audits.CHECKS, *checks.CHECKS} <= set(found)
        assert (found["cubin_sm"], found["cubin_abi"]) == ("sm_90", "OS/ABI 0x41 version 8")
        assert "fold_f16, fold_f32" in found["kernels"]
        assert "fold_f32: " in found["resources"]
        assert "0 B spills" in found["resources"]
        assert "NVRTC 13.0" in manifest.tools["device_compiler"]
        assert "--gpu-architecture=sm_90" in manifest.tools["flags"]
        cubin, launched = read_device_sections(library)
        assert set(launched) == set(read_cubin(cubin).kernels) == {"fold_f32", "fold_f16"}

    @pytest.mark.parametrize(
        ("toolchain", "sm", "abi"), [(ORIN, 87, (0x33, 7)), (THOR, 110, (0x41, 8))], ids=["sm_87", "sm_110"]
    )
    def test_other_boards(self, attempt, toolchain, sm, abi):
        if missing := problems(toolchain):
            pytest.skip(" ".join(missing))
        manifest, library = attempt(bundles.fold(), toolchain)
        assert manifest.ok
        cubin = read_cubin(read_device_sections(library)[0])
        assert (cubin.sm, (cubin.os_abi, cubin.abi_version)) == (sm, abi)
        found = {check.name: check.found for check in manifest.checks}
        assert found["machine"] == "EM_AARCH64, 64 bit"
        assert "libcuda.so.1" in found["needed"]
        assert "libcudart" not in found["needed"]

    def test_the_same_bytes_again(self, attempt, tmp_path, mode):
        manifest, library = attempt(bundles.fold())
        path = tmp_path / "kernel.module_source.py"
        path.write_text(render_bundle(bundles.fold()))
        again = build_plugin(path, spec(HERE), tmp_path / "out", tmp_path / "cache", mode, toolchains=[HERE])
        assert again == manifest
        assert (tmp_path / "out" / "plugin.so").read_bytes() == library.read_bytes()

    def test_the_bundles_flags_are_the_device_compilers(self, attempt):
        manifest, _ = attempt(with_meta(bundles.depthwise(), compile_flags=["--maxrregcount=32", "--use_fast_math"]))
        assert "--maxrregcount=32 --use_fast_math" in manifest.tools["flags"]


class TestFlags:
    def test_device_and_launcher(self):
        arch = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
        assert device_flags(arch, ["--fmad=false"]) == ["--gpu-architecture=sm_87", "--std=c++17", "--fmad=false"]
        assert "-march=armv8-a" in launcher_flags(arch)

    @pytest.mark.parametrize("flag", ["-O3", "--maxrregcount=9", "--maxrregcount=256", "-I/etc", "--fmad=maybe", "-DX"])
    def test_what_is_no_optimisation_flag_is_refused(self, flag):
        with pytest.raises(UserError) as caught:
            device_flags(spec(HERE), [flag])
        assert caught.value.code == "flag_not_allowed"
        assert flag in caught.value.message

    def test_a_cpu_has_no_device_code(self):
        with pytest.raises(UserError, match="is no GPU"):
            device_flags(ArchSpec.parse("amd64-cpuv4-linux-glibc236-ov20264"))


class TestRefused:
    @pytest.mark.parametrize(
        ("old", "new", "code", "says"),
        [
            ("float sum = 0;", "float sum = oops;", "device_compile_error", '"oops" is undefined'),
            ("block, 0, static_cast<const float*>", "block, 0, static_cast<const char*>", "compile_error", "SOURCE:"),
            # The two compilers would disagree about the arguments: the shared declaration does not allow it.
            (
                "void fold_f32(const float* x, float* y, int64_t count) {",
                "void fold_f32(const float* x, float* y, int count) {",
                "device_compile_error",
                "fold_f32",
            ),
            # Only declared: "undefined kernel template instance" in its simplest form.
            (
                'extern "C" __global__ void fold_f16(const ytk_half* x, ytk_half* y, int64_t count) { fold(x, y, count); }',
                "",
                "audit_kernels",
                "the cubin lacks fold_f16",
            ),
            ("fold(x, y, count); }\nextern", "fold(x, y, count); lost(y); }\nextern", "device_compile_error", "lost"),
            (
                'extern "C" int ytk_launch',
                'int lost();\nint kept = lost();\nextern "C" int ytk_launch',
                "undefined_symbol",
                "lost()",
            ),
        ],
    )
    def test_wrong_text(self, attempt, old, new, code, says):
        assert old in bundles.FOLD
        with pytest.raises(CandidateError) as caught:
            attempt(with_source(bundles.fold(), bundles.FOLD.replace(old, new)))
        assert caught.value.code == code, caught.value.message
        assert says in caught.value.message

    def test_a_launcher_without_a_kernel(self, attempt):
        source = '#ifndef __CUDACC__\nextern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return 0; }\n#else\nextern "C" __global__ void k() {}\n#endif\n'
        with pytest.raises(CandidateError) as caught:
            attempt(with_source(bundles.fold(), source))
        assert caught.value.code == "audit_kernels"
        assert "the launcher uses no kernel" in caught.value.message

    def test_a_template_that_nobody_instantiates(self, attempt):
        source = bundles.FOLD.replace(
            'extern "C" __global__ void fold_f16(const ytk_half* x, ytk_half* y, int64_t count)',
            "template <class T> __global__ void fold_t(const T* x, T* y, int64_t count)",
        )
        with pytest.raises(CandidateError) as caught:
            attempt(with_source(bundles.fold(), source))
        assert caught.value.code == "audit_kernels"

    def test_the_hosts_headers_are_not_the_devices(self, attempt):
        with pytest.raises(CandidateError) as caught:
            attempt(with_source(bundles.fold(), '#ifdef __CUDACC__\n#include "/etc/passwd"\n#endif\n' + bundles.FOLD))
        assert caught.value.code == "device_compile_error"
        assert "root:" not in caught.value.message

    def test_a_cpu_bundle_for_a_gpu(self, attempt):
        from fakes import kernel_bundles

        with pytest.raises(UserError) as caught:
            attempt(kernel_bundles.fold())
        assert caught.value.code == "wrong_deployment_target"


class TestChecks:
    """Each check of device code fails on a seeded fault."""

    def found(self, library: Path, arch: str, name: str):
        return next(r for r in device_checks(library, arch=ArchSpec.parse(arch)) if r.name == name)

    def test_wrong_sm(self, library):
        check = self.found(library, "amd64-sm87-linux-cu130-trt1014", "cubin_sm")
        assert (check.ok, check.found, check.wanted) == (False, "sm_90", "sm_87")
        assert "no kernel image is available" in check.fix

    def test_cubin_abi_newer_than_the_driver(self, library):
        check = self.found(library, "amd64-sm90-linux-cu126-trt103", "cubin_abi")
        assert (check.ok, check.found, check.wanted) == (False, "OS/ABI 0x41 version 8", "OS/ABI 0x33 version 7")
        assert "cu126" in check.fix
        assert self.found(library, "amd64-sm90-linux-cu132-trt1014", "cubin_abi").ok

    def test_no_device_code(self, build, tmp_path):
        from fakes import kernel_bundles

        (check,) = device_checks(build(kernel_bundles.fold())[1] / "plugin.so", arch=spec(HERE))
        assert (check.name, check.ok, check.found) == ("cubin", False, "no device code")

    def test_a_damaged_cubin(self, library, tmp_path):
        content = library.read_bytes()
        cubin = read_device_sections(library)[0]
        (tmp_path / "x.so").write_bytes(content.replace(cubin[:64], b"\0" * 64))
        (check,) = device_checks(tmp_path / "x.so", arch=spec(HERE))
        assert (check.name, check.ok) == ("cubin", False)
        for cut in (b"", cubin[:80], library.read_bytes()):
            with pytest.raises(NotCubinError):
                read_cubin(cut)

    def test_undefined_device_function(self, library, monkeypatch):
        monkeypatch.setattr(
            checks, "read_cubin", lambda content: msgspec.structs.replace(read_cubin(content), undefined=("lost",))
        )
        check = self.found(library, str(spec(HERE)), "cubin_undefined")
        assert (check.ok, check.found) == (False, "lost")

    def test_too_much_shared_memory(self, library, monkeypatch):
        use = KernelUse(registers=32, stack_bytes=0, shared_bytes=300_000)
        cubin = Cubin(sm=90, os_abi=0x41, abi_version=8, kernels={"fold_f32": use, "fold_f16": use}, undefined=())
        monkeypatch.setattr(checks, "read_cubin", lambda _: cubin)
        check = self.found(library, str(spec(HERE)), "resources")
        assert not check.ok
        assert "fold_f16, fold_f32" in check.fix

    def test_the_compilers_notes(self):
        use = KernelUse(registers=40, stack_bytes=8, shared_bytes=2048)
        log = "ptxas info : Compiling entry function 'k' for 'sm_90'\nptxas . 8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\nptxas info : Used 40 registers, 1024 bytes smem\n"
        (found,) = with_compiler_notes({"k": use}, log).values()
        assert (found.spill_bytes, found.shared_bytes) == (40, 1024)

    def test_occupancy(self):
        """By hand: 48 registers are 1536 a warp, so 42 warps fit, which is 5 blocks of 8."""
        assert occupancy(87, KernelUse(registers=48, stack_bytes=0, shared_bytes=0), 256) == pytest.approx(40 / 48)
        assert occupancy(90, KernelUse(registers=64, stack_bytes=0, shared_bytes=0), 256) == pytest.approx(0.5)
        assert occupancy(90, KernelUse(registers=32, stack_bytes=0, shared_bytes=100 * 1024), 256) == pytest.approx(
            0.25
        )
        assert occupancy(999, KernelUse(registers=32, stack_bytes=0, shared_bytes=0), 256) is None


class TestFinding:
    def test_missing_says_what_to_install(self, tmp_path):
        device = DeviceCode(
            sm="sm_87",
            compiler="nvrtc",
            version="11.8",
            launch="driver",
            install="pip install 'yasp-toolkit[forge-cuda]'",
        )
        with pytest.raises(NotAvailableError) as caught:
            find_nvrtc(device.version, device.install, [tmp_path])
        assert caught.value.code == "nvrtc_missing"
        assert "forge-cuda" in caught.value.hint
        lib = tmp_path / "cuda_nvrtc" / "lib"
        lib.mkdir(parents=True)
        for name in ("libnvrtc-builtins.so.11.8", "libnvrtc.so.11.2"):
            (lib / name).touch()
        include = tmp_path / "cuda_runtime" / "include"
        include.mkdir(parents=True)
        (include / "cuda_fp16.h").touch()
        # The CUDA 12 wheel has overwritten the CUDA 11 wheel's headers: they share a directory.
        (include / "cuda.h").write_text("#define CUDA_VERSION 12090\n")
        with pytest.raises(NotAvailableError) as caught:
            find_nvrtc(device.version, device.install, [tmp_path])
        assert caught.value.code == "cuda_headers_missing"
        (include / "cuda.h").write_text("#define CUDA_VERSION 11080\n")
        assert find_nvrtc(device.version, device.install, [tmp_path]).include_dir == str(include)

    def test_the_best_version_that_is_there(self, tmp_path):
        """A newer NVRTC in a directory of its own, as `pip install --target` makes it, beside the one that will do."""

        def install(root: Path, version: str) -> None:
            lib, include = root / "nvidia/cuda_nvrtc/lib", root / "nvidia/cuda_runtime/include"
            for directory in (lib, include):
                directory.mkdir(parents=True)
            (lib / f"libnvrtc-builtins.so.{version}").touch()
            (lib / f"libnvrtc.so.{version.split('.', maxsplit=1)[0]}").touch()
            (include / "cuda_fp16.h").touch()
            major, minor = version.split(".")
            (include / "cuda.h").write_text(f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}\n")

        for name, version in (("old", "7.5"), ("new", "12.6")):
            install(tmp_path / name, version)

        def found(path: str, *prefer: str) -> str:
            changes = {"path": path and str(tmp_path / path), "prefer": prefer, "version": "7.5"}
            device = msgspec.convert(msgspec.to_builtins(HERE.device) | changes, DeviceCode)
            tool = find_device_compiler(msgspec.structs.replace(HERE, device=device))
            assert tool is not None
            return tool.version

        assert found("new", "12.6") == "12.6"
        assert found("old", "12.6") == "7.5", "what is preferred is not there"
        assert found("old") == "7.5"
        with pytest.raises(NotAvailableError, match=r"no NVRTC 7\.5"):
            found("", "8.0")

    @pytest.mark.parametrize("change", [{"compiler": "clang"}, {"launch": "cudart"}])
    def test_what_this_forge_does_not_do(self, change):
        device = msgspec.convert(msgspec.to_builtins(HERE.device) | change, DeviceCode)
        assert any(
            "not supported by this Forge" in text for text in problems(msgspec.structs.replace(HERE, device=device))
        )


def by_nvcc(**changes: str) -> Toolchain:
    device = msgspec.to_builtins(HERE.device) | {"compiler": "nvcc", "install": "Install the CUDA toolkit"} | changes
    return msgspec.structs.replace(HERE, name="nvcc", device=msgspec.convert(device, DeviceCode))


class TestNvcc:
    """The same text through nvcc, for targets whose device compiler is in no package."""

    def test_builds_and_passes(self, attempt):
        if missing := problems(by_nvcc()):
            pytest.skip(" ".join(missing))
        manifest, library = attempt(bundles.fold(), by_nvcc())
        found = {check.name: check.found for check in manifest.checks}
        assert manifest.ok
        assert manifest.tools["device_compiler"].startswith("nvcc 13.0 (")
        assert set(read_cubin(read_device_sections(library)[0]).kernels) == {"fold_f32", "fold_f16"}
        assert "0 B spills" in found["resources"]
        with pytest.raises(CandidateError) as caught:
            attempt(with_source(bundles.fold(), bundles.FOLD.replace("float sum = 0;", "float sum = oops;")), by_nvcc())
        assert caught.value.code == "device_compile_error"
        assert '"oops" is undefined' in caught.value.message

    def fake(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "nvcc"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (
                "echo 'release 11.4, V11.4.2'; echo '#$ TOP=/x'; echo '#$ INCLUDES=\"-I/x\"'",
                "is of CUDA 11.4, wanted 13.0",
            ),
            ("echo hello", "its answer is not nvcc's"),
            ("exit 1", "does not work"),
        ],
    )
    def test_an_nvcc_that_will_not_do(self, tmp_path, text, says):
        found = problems(by_nvcc(path=self.fake(tmp_path, text)))
        assert any(says in line for line in found)
        assert any("device.path of the toolchain names the nvcc to use" in line for line in found)

    def test_none(self):
        assert any("no nvcc: /no/such/nvcc" in line for line in problems(by_nvcc(path="/no/such/nvcc")))


class TestLaunch:
    """What the launcher asks of the driver; no GPU is there, the driver only remembers."""

    @pytest.fixture(autouse=True)
    def _fresh(self, driver):
        self.driver = driver
        self.log = (ctypes.c_char * 65536).in_dll(driver, "fake_log")
        self.log.value = b""
        ctypes.c_void_p.in_dll(driver, "fake_context").value = 0x10
        ctypes.c_int.in_dll(driver, "fake_launch_status").value = 0

    def lines(self) -> list[str]:
        text = self.log.value.decode().splitlines()
        self.log.value = b""
        return text

    def call(
        self, table: Table, variant: int, ins: list[list[int]], outs: list[list[int]], attrs=(), workspace=None
    ) -> int:
        types = table.variants[variant]
        ctx = Context(size=ctypes.sizeof(Context), abi_version=1, variant=variant, threads=1, stream=0x5EA)
        if attrs:
            array = (Attr * len(attrs))(*attrs)
            ctx.attrs, ctx.attr_count = array, len(attrs)
        if workspace:
            ctx.workspace, ctx.workspace_bytes = workspace

        def tensors(dims, dtypes, formats, base):
            made = (Tensor * len(dims))()
            for k, (tensor, extents) in enumerate(zip(made, dims, strict=True)):
                tensor.data, tensor.dtype, tensor.format, tensor.rank, tensor.scale = (
                    base + k * 4096,
                    dtypes[k],
                    formats[k],
                    len(extents),
                    1,
                )
                tensor.dims[: len(extents)] = extents
            return made

        inputs = tensors(ins, types.in_dtypes, types.in_formats, 0x10000)
        outputs = tensors(outs, types.out_dtypes, types.out_formats, 0x20000)
        return table.launch(ctypes.byref(ctx), inputs, len(ins), outputs, len(outs))

    def test_one_load_per_context_and_every_argument(self, attempt):
        table = load_table(attempt(bundles.fold())[1])
        assert self.call(table, 0, [[3, 36, 64]], [[3, 4, 8, 8]]) == 0
        assert self.lines() == [
            "load ELF machine 190",
            f"launch fold_f32 grid 3,1,1 block 256,1,1 shared 0 stream 0x5ea extra 0 args {0x10000} {0x20000} 768",
        ]
        assert self.call(table, 1, [[1, 36, 64]], [[1, 4, 8, 8]]) == 0
        (line,) = self.lines()
        assert line.startswith("launch fold_f16 grid 1,1,1")
        ctypes.c_void_p.in_dll(self.driver, "fake_context").value = 0x11
        assert self.call(table, 0, [[1, 36, 64]], [[1, 4, 8, 8]]) == 0
        assert self.lines()[0].startswith("load ELF"), "another GPU has its own module"
        ctypes.c_void_p.in_dll(self.driver, "fake_context").value = 0x10
        assert self.call(table, 0, [[1, 36, 64]], [[1, 4, 8, 8]]) == 0
        assert len(self.lines()) == 1

    def test_shared_memory_beyond_48_kib_is_asked_for_once(self, attempt):
        table = load_table(attempt(bundles.scale())[1])
        factor = Attr(name=b"factor", type=2, count=1, floats=(ctypes.c_double * 1)(2.5))
        shift = Attr(name=b"shift", type=1, count=1, ints=(ctypes.c_int64 * 1)(-7))
        mode = Attr(name=b"mode", type=3, count=7, string=b'lin"ear')
        for number in range(2):
            status = self.call(
                table, 0, [[5, 8], [8]], [[5, 8], [3]], attrs=[factor, shift, mode], workspace=(0x40000, 256)
            )
            assert status == 0
            lines = self.lines()
            assert lines[-1].endswith(
                f"shared 65536 stream 0x5ea extra 0 args {0x10000} {0x11000} {0x20000} {0x21000} 40 {0x40200000} -7"
            )
            assert ("attribute scale 8 = 65536" in lines) == (number == 0)

    def test_no_context_and_a_failed_launch(self, attempt):
        table = load_table(attempt(bundles.depthwise())[1])
        ctypes.c_void_p.in_dll(self.driver, "fake_context").value = None
        shape = [[1, 16, 2, 2]]
        assert self.call(table, 1, shape, shape) == 7, "YTK_DEVICE_ERROR"
        assert self.lines() == []
        ctypes.c_void_p.in_dll(self.driver, "fake_context").value = 0x12
        ctypes.c_int.in_dll(self.driver, "fake_launch_status").value = 400
        assert self.call(table, 1, shape, shape) == 7
        ctypes.c_int.in_dll(self.driver, "fake_launch_status").value = 0
        self.lines()
        assert self.call(table, 1, shape, shape) == 0
        assert self.lines()[0].startswith("load ELF"), "an invalid handle means that the context was made anew"

    def test_wrong_shapes_never_reach_the_driver(self, attempt):
        table = load_table(attempt(bundles.fold())[1])
        assert self.call(table, 0, [[3, 36, 63]], [[3, 4, 8, 8]]) == 3
        assert self.lines() == []
