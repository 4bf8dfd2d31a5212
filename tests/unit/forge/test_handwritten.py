"""Skeletons through Forge: they build, pass the audit, load, and run nothing; what is then written by hand computes."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ytk_client.handwritten.skeleton import make_skeleton
from ytk_core.abi import include_dir
from ytk_core.abi.ctypes_abi import STATUS, Tensor
from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle, translation_unit
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.formats.region import RegionSpec, RegionTensor
from ytk_forge.build import build_plugin
from ytk_forge.readiness import problems

from fakes.forge_toolchains import TRT10
from fakes.plugin_calls import as_aligned, context, launch

F32, I64 = DType.FLOAT32, DType.INT64
ROWS = RegionSpec(
    namespace="yasp",
    name="TakeRows",
    version="1",
    inputs=(
        RegionTensor(name="table", dtype=F32, shape=(10, 4)),
        RegionTensor(name="index", dtype=I64, shape=(6,), dynamic_axes=(0,)),
    ),
    outputs=(RegionTensor(name="rows", dtype=F32, shape=(6, 4), dynamic_axes=(0,)),),
    aten_ops=("aten.index_select",),
    digest=digest_bytes(b"rows"),
    torch_version="2.13.0",
)
CPU_BODY = """
  for (int64_t row = 0; row < in[1].dims[0]; ++row)
    for (int64_t column = 0; column < 4; ++column) out0[row * 4 + column] = in0[in1[row] * 4 + column];
  return YTK_OK;
"""


def written(bundle: KernelBundle, body: str) -> KernelBundle:
    source = bundle.source.replace("#define YTK_SKELETON", "//")
    line = next(line for line in source.splitlines() if "#error" in line)
    return msgspec.structs.replace(bundle, source=source.replace(line, body))


def arrays() -> list[np.ndarray]:
    table = as_aligned(np.arange(40).reshape(10, 4), np.float32)
    index = as_aligned([3, 0, 9, 3, 1], np.int64)
    return [table, index, as_aligned(np.full((5, 4), -7), np.float32)]


def test_a_skeleton_runs_nothing(load, arch):
    table = load(make_skeleton(ROWS, arch).bundle)
    *inputs, rows = arrays()
    status = launch(table, context(), inputs, [rows])
    assert STATUS[status] == "YTK_UNSUPPORTED"
    assert (rows == -7).all(), "it touches no memory"


def test_what_is_written_in_it_computes(load, arch):
    table = load(written(make_skeleton(ROWS, arch).bundle, CPU_BODY))
    values, index, rows = arrays()
    assert launch(table, context(), [values, index], [rows]) == 0
    np.testing.assert_array_equal(rows, values[index])
    # The contract of the skeleton guards the hand-written kernel too.
    assert launch(table, context(), [values[:9], index], [rows]) != 0


def test_the_kernel_of_the_guide_is_right(load, arch):
    page = (Path(__file__).parents[3] / "docs/guides/kernels-by-hand.md").read_text()
    (body,) = re.findall(r"^```cpp\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    columns = RegionTensor(name="columns", dtype=F32, shape=(2, 36, 64), dynamic_axes=(0,))
    image = RegionTensor(name="image", dtype=F32, shape=(2, 4, 8, 8), dynamic_axes=(0,))
    fold = msgspec.structs.replace(ROWS, name="Col2im", inputs=(columns,), outputs=(image,))
    table = load(written(make_skeleton(fold, arch).bundle, body))
    values = np.random.default_rng(1).standard_normal((3, 4, 3, 3, 8, 8)).astype(np.float32)
    padded = np.zeros((3, 4, 10, 10), np.float32)
    for i in range(3):
        for j in range(3):
            padded[:, :, i : i + 8, j : j + 8] += values[:, :, i, j]
    got = as_aligned(np.full((3, 4, 8, 8), -7), np.float32)
    assert launch(table, context(), [as_aligned(values.reshape(3, 36, 64), np.float32)], [got]) == 0
    np.testing.assert_allclose(got, padded[:, :, 1:9, 1:9], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(bool(problems(TRT10)), reason=" ".join(problems(TRT10)))
class TestCuda:
    @pytest.fixture
    def built(self, tmp_path, cache_dir, mode):
        def run(bundle: KernelBundle) -> Path:
            path = tmp_path / "kernel.module_source.py"
            path.write_text(render_bundle(bundle))
            arch = TRT10.arch_specs()[0]
            assert build_plugin(path, arch, tmp_path / "out", cache_dir, mode, toolchains=[TRT10]).ok
            return tmp_path / "out" / "plugin.so"

        return run

    def test_a_skeleton_passes_the_audit(self, built):
        library = built(make_skeleton(ROWS, TRT10.arch_specs()[0]).bundle)
        assert read_plugin_manifest(library.parent / "manifest.json").meta.generator.strategy == "skeleton"

    def test_a_written_kernel_passes_the_audit(self, built):
        bundle = make_skeleton(ROWS, TRT10.arch_specs()[0]).bundle
        source = bundle.source.replace("#define YTK_SKELETON", "//").replace("#ifndef YTK_SKELETON\n", "")
        begin, end = source.index('#error "write out0'), source.index("}\n", source.index('#error "write out0'))
        body = "  out0[k] = in0[in1[k / 4] * 4 + k % 4];\n"
        built(msgspec.structs.replace(bundle, source=source[:begin] + body + source[end:]))


def test_a_cuda_skeleton_launches_nothing(tmp_path):
    """Its launcher beside a stand-in for the launch function, which would say 77."""
    stub = 'extern "C" int ytk_cuda_launch(const ytk_context*, const char*, const uint32_t*, const uint32_t*, uint32_t, void**)'
    text = translation_unit(make_skeleton(ROWS, TRT10.arch_specs()[0]).bundle) + f"\n{stub} {{ return 77; }}\n"

    def status_of(name: str, source: str) -> int:
        (tmp_path / f"{name}.cpp").write_text(source)
        library = tmp_path / f"{name}.so"
        command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{include_dir()}", str(tmp_path / f"{name}.cpp")]
        subprocess.run([*command, "-o", str(library)], check=True, timeout=600)
        ins, out = (Tensor * 2)(), (Tensor * 1)()
        return int(ctypes.CDLL(str(library)).ytk_launch(ctypes.byref(context()), ins, 2, out, 1))

    assert STATUS[status_of("skeleton", text)] == "YTK_UNSUPPORTED"
    assert status_of("written", text.replace("#define YTK_SKELETON", "//")) == 77
