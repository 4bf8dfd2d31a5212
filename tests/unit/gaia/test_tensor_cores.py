"""Tensor cores on the emulation: fragments lie as PTX says, misuse is named, and a wrong layout would be seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import DeploymentTarget, InputDecl, OutputDecl, TensorType, Variant
from ytk_gaia.emulation import build as emulation
from ytk_gaia.emulation.build import Check, Emulator
from ytk_gaia.generator.cuda_printer import cuda_header

from fakes import emulated_bundles
from fakes.kernel_bundles import F32, meta

F16 = TensorType(dtype=DType.FLOAT16)

# One warp. The fragments are filled by the formulas of the PTX ISA ("Matrix fragments for mma.m16n8k16 with floating point type"),
# in its own words: groupID = lane >> 2, threadID_in_group = lane % 4. `how` 0: so; 1: by ldmatrix, B transposed on its way;
# 2: by ldmatrix with A stored by columns; from 3 on: misuse.
_KERNEL = """
// ytk::gemm_tile is what the header is taken for
YTK_KERNEL(product, const ytk_half* a, const ytk_half* b, float* d, const float* how);
#ifdef __CUDACC__
extern "C" __global__ void __launch_bounds__(64) product(const ytk_half* a, const ytk_half* b, float* d, const float* how) {
  alignas(16) __shared__ ytk::half of_a[16][16];
  alignas(16) __shared__ ytk::half of_b[16][8];
  alignas(16) __shared__ ytk::half by_columns[16][16];
  const int lane = threadIdx.x, group = lane >> 2, inside = lane % 4, way = (int)how[0];
  const ytk::half* const ga = (const ytk::half*)a;
  const ytk::half* const gb = (const ytk::half*)b;
  if (lane < 32) for (int k = lane; k < 256; k += 32) of_a[k / 16][k % 16] = by_columns[k % 16][k / 16] = ga[k];
  if (lane < 16 && way != 6) ytk::cp_async_16(&of_b[lane][0], gb + lane * 8, true);
  if (way == 6 && lane < 16) ytk::cp_async_16(&of_b[lane][1], gb, true);
  ytk::cp_async_commit();
  if (way != 5) ytk::cp_async_wait<0>();
  __syncthreads();
  uint32_t fa[4], fb[4];
  for (int i = 0; i < 8; ++i) {
    const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
    const int column = inside * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    const uint32_t bits = ga[row * 16 + column].bits;
    fa[i / 2] = i & 1 ? fa[i / 2] | bits << 16 : bits;
  }
  for (int i = 0; i < 4; ++i) {
    const int row = inside * 2 + (i & 1) + (i >= 2 ? 8 : 0), column = group;
    const uint32_t bits = gb[row * 8 + column].bits;
    fb[i / 2] = i & 1 ? fb[i / 2] | bits << 16 : bits;
  }
  if (way >= 1 && lane < 32) {
    const int matrix = lane / 8, line = lane % 8;
    if (way == 2) ytk::ldmatrix_x4<true>(fa, &by_columns[matrix / 2 * 8 + line][matrix % 2 * 8]);
    else ytk::ldmatrix_x4<false>(fa, &of_a[matrix % 2 * 8 + line][matrix / 2 * 8]);
    ytk::ldmatrix_x4<true>(fb, way == 7 ? (const ytk::half*)ga : &of_b[(matrix % 2) * 8 + line][0]);
  }
  float sums[4] = {};
  if (way == 3 && lane >= 30) return;
  if (way == 4 && lane == 0) ytk::ldmatrix_x4<false>(fa, &of_a[0][0]);
  if (lane < 32) ytk::mma_m16n8k16(sums, fa, fb[0], fb[1]);
  for (int i = 0; i < 4 && lane < 32; ++i) {
    const int row = i < 2 ? group : group + 8, column = inside * 2 + (i & 1);
    d[row * 8 + column] = sums[i];
  }
}
#else
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  return product.launch(ctx, {1}, {64}, 0, (const ytk_half*)in[0].data, (const ytk_half*)in[1].data, (float*)out[0].data, (const float*)in[2].data);
}
#endif
"""
# Every entry of A is another one, and so is every one of B; all sums are exact.
A = (np.arange(256, dtype=np.float32).reshape(16, 16) - 100).astype(np.float16)
B = (np.arange(128, dtype=np.float32).reshape(16, 8) - 60).astype(np.float16)
PRODUCT = A.astype(np.float64) @ B.astype(np.float64)


def bundle() -> KernelBundle:
    declared = [InputDecl(name=n, rank=2, dims=list(shape)) for n, shape in (("a", (16, 16)), ("b", (16, 8)))]
    return KernelBundle(
        header=cuda_header(_KERNEL),
        source=_KERNEL,
        meta=meta(
            "Product",
            [*declared, InputDecl(name="how", rank=1, dims=[1])],
            [OutputDecl(name="d", rank=2, shape=["16", "8"])],
            [Variant(id="f16", inputs=[F16, F16, F32], outputs=[F32])],
            deployment_target=DeploymentTarget.TENSORRT,
        ),
    )


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return Emulator.prepare(tmp_path_factory.mktemp("emulation"), "optional")


@pytest.fixture(scope="module")
def library(emulator, tmp_path_factory):
    return emulated_bundles.build(emulator, bundle(), tmp_path_factory.mktemp("mma") / "plain")


def product(library, how):
    return emulated_bundles.call(library, [A, B, np.array([how], np.float32)], [((16, 8), "float32")])


@pytest.mark.parametrize("how", [0, 1, 2])
def test_fragments_and_matrix_loads_give_the_plain_product(library, how):
    found = product(library, how)
    assert found.status == 0, found.said
    np.testing.assert_array_equal(found.outputs[0], PRODUCT)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (3, "not all 32 lanes"),
        (4, "different instructions"),
        (6, "cp.async with an address that is not aligned"),
        (7, "ldmatrix with an address that is not shared memory"),
    ],
)
def test_misuse_is_named(library, how, said):
    found = product(library, how)
    assert found.status != 0
    assert said in found.said


def test_a_copy_that_nobody_waited_for_is_not_there(library):
    found = product(library, 5)
    assert found.status == 0, found.said
    assert not np.array_equal(found.outputs[0], PRODUCT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("row / 8 + 2 * (k / 8)", "k / 8 + 2 * (row / 8)"),  # registers 1 and 2 of A
        ("of_b = column * 4 + k % 8 / 2", "of_b = k % 8 / 2 * 8 + column"),
        ("row = g + 8 * (i / 2)", "row = g + 8 * (i % 2)"),
    ],
)
def test_another_layout_would_be_seen(emulator, tmp_path, old, new):
    """The emulation with a fault in it: the product must not come out right."""
    (compile_,) = [c for c in emulation.runtime_commands(tmp_path) if c[-1].endswith("/tensor_cores.o")]
    source = Path(compile_[-3])
    text = source.read_text()
    assert old in text
    faulty = tmp_path / source.name
    faulty.write_text(text.replace(old, new))
    subprocess.run([*compile_[:-3], str(faulty), "-I", str(source.parent), *compile_[-2:]], check=True)
    objects = tuple(o for o in emulator.objects if o.name != "tensor_cores.o")
    library = emulated_bundles.build(
        Emulator((*objects, tmp_path / "tensor_cores.o"), "optional"), bundle(), tmp_path / "built"
    )
    found = product(library, 0)
    assert found.status == 0, found.said
    assert not np.array_equal(found.outputs[0], PRODUCT)


def test_a_matrix_instruction_orders_no_memory(emulator, tmp_path):
    """Lanes that hand data on through shared memory need a barrier, whatever instruction they meet at."""
    found = bundle()
    hand_on = "if (lane < 32) { of_a[0][lane % 16] = ga[0]; ytk::mma_m16n8k16(sums, fa, fb[0], fb[1]); fa[0] += of_a[0][(lane + 1) % 16].bits; }"
    source = _KERNEL.replace("if (way == 3 && lane >= 30) return;", hand_on)
    raced = KernelBundle(header=found.header, source=source, meta=found.meta)
    library = emulated_bundles.build(emulator, raced, tmp_path / "races", Check.RACES)
    answer = product(library, 0)
    assert answer.status != 0
    assert "race:" in answer.said
