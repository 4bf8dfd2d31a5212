"""Matrix products and attention as templates on GPUs: what is one, what follows it, and whole regions on the emulation."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from elftools.elf.elffile import ELFFile

from ytk_core.archspec import ArchSpec
from ytk_core.formats.kernel_bundle import KernelBundle, read_bundle
from ytk_gaia.emulation.build import Check, Emulator
from ytk_gaia.evaluator.device_facts import compile_for, nvrtc_for
from ytk_gaia.generator.cuda_gemm import Loop, find_product, linear_terms, with_epilogues
from ytk_gaia.generator.cuda_templates import parts_in, templates_for
from ytk_gaia.generator.cuda_tiles import TILES, fitting, launchable
from ytk_gaia.generator.nest import Nest, NestKind, StateVariable
from ytk_gaia.generator.run import generate

from fakes import emulated_bundles

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ORIN = "arm64-sm87-dos6010-cu114-trt86"


# ---- what is a product -----------------------------------------------------------------------------------------------


def product_nest(a="x0[r0 + 24L*i0]", b="x1[i1 + 40L*r0]", sizes=(48, 40), depth=24, buffer="buf0"):
    return Nest(
        buffer,
        list(sizes),
        [depth],
        NestKind.REDUCTION,
        [StateVariable("s0", "float", "0", "{a} + {b}")],
        [
            f"const auto t1 = ytk::cast<float>(ytk::load({a}));",
            f"const auto t2 = ytk::cast<float>(ytk::load({b}));",
            "const auto t3 = ytk::op_mul(t1, t2);",
            "s0 += t3;",
        ],
        [f"ytk::store(b0[i1 + {sizes[1]}L*i0], s0);"],
        {"a", "b"},
        {buffer},
    )


def following(body, sizes=(48, 40), reads=("buf0",), buffer="buf1"):
    return Nest(buffer, list(sizes), [], NestKind.POINTWISE, [], list(body), [], set(reads), {buffer})


def test_factors_are_told_apart_by_the_loops_that_they_depend_on():
    found = find_product(product_nest())
    assert found is not None
    assert (found.rows, found.columns, found.depth) == ((Loop("i0", 48),), (Loop("i1", 40),), (Loop("r0", 24),))
    assert (found.a.along_k, found.a.vector) == (True, True)
    assert (found.b.along_k, found.b.vector) == (False, True)
    assert found.a.place == ("x0", "r0 + 24L*i0")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x0[r0 + 24L*i0]", "x1[r0 + 24L*i0]"),  # nothing for the columns
        ("x0[i0]", "x1[i1 + 40L*r0]"),  # a factor that could stand outside
    ],
)
def test_what_is_no_product(a, b):
    assert find_product(product_nest(a, b)) is None


def test_eight_neighbours_need_strides_that_keep_them_aligned():
    odd = find_product(product_nest("x0[r0 + 23L*i0]"))
    assert odd is not None
    assert odd.a.along_k
    assert not odd.a.vector
    view = find_product(product_nest(), frozenset({"x0"}))
    assert view is not None
    assert not view.a.vector
    assert view.b.vector


def test_an_index_is_taken_apart():
    assert linear_terms("i1 + 40L*i0 + 3L") == ({"i1": 1, "i0": 40}, 3)
    assert linear_terms("((i0) / (4L)) + i1") is None
    assert linear_terms("i0*i1") is None


def test_what_goes_on_with_each_element_is_the_epilogue():
    body = [
        "const auto t1 = ytk::cast<float>(ytk::load(b0[i0]));",
        "const auto t2 = ytk::op_relu(t1);",
        "ytk::store(y0[i0], t2);",
    ]
    nests = [product_nest(), following(body, (1920,))]
    names = {name: name for name in ("buf0", "buf1", "a", "b")}
    (made,) = with_epilogues(nests, frozenset({"buf1"}), names, frozenset())
    ((product,), _) = parts_in([made])
    assert product.store == ""
    assert product.links[0].loops == ((Loop("i0", 1920), 1),)
    assert "ytk::cast<float>(s0)" in product.links[0].statements[0]
    assert made.writes == {"buf1"}
    # Whoever else reads the product gets it as well.
    names["buf2"] = "buf2"
    nests = [product_nest(), following(body, (1920,)), following(body, (1920,), buffer="buf2")]
    made, _ = with_epilogues(nests, frozenset({"buf1", "buf2"}), names, frozenset())
    assert made.writes == {"buf0", "buf1"}
    # Elements that are read twice, or in another number, are no epilogue.
    assert len(with_epilogues([product_nest(), following(body, (1900,))], frozenset(), names, frozenset())) == 2


def test_tiles_fit_the_product_and_the_multiprocessor():
    small = find_product(product_nest())
    assert small is not None
    assert fitting(small, TILES[0]).name == "t64x64"
    assert all(launchable(tile, 87) for tile in TILES)
    assert all(tile.shared_bytes <= 48 << 10 for tile in TILES)
    assert {t.name for t in templates_for([small], [], 87)} == {"t128x128", "t32x64", "t32x32"}


# ---- whole regions on the emulation ----------------------------------------------------------------------------------


class Linear(torch.nn.Module):
    def forward(self, x, w, b):
        return torch.relu(torch.nn.functional.linear(x, w, b))


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return Emulator.prepare(tmp_path_factory.mktemp("emulation"), "optional")


def first_template(directory, module, inputs) -> KernelBundle:
    torch.export.save(torch.export.export(module.eval(), inputs), directory / "region.pt2")
    config = {"deployment_target": "tensorrt", "strategies": "templates", "candidates": 1}
    found = generate({"region": "region.pt2", "name": "R", "config": config, "arch_spec": ORIN}, directory)
    (candidate,) = found["candidates"]
    assert candidate["id"].startswith("templates-")
    return read_bundle(directory / "out" / "candidates" / f"{candidate['id']}.py")


def held_against(library, inputs, want):
    """Both variants; the second has halves in memory and on the tensor cores."""
    for variant, (kind, tolerance) in enumerate((("float32", 1e-5), ("float16", 4e-3))):
        given = [x.numpy().astype(kind) for x in inputs]
        found = emulated_bundles.call(library, given, [(tuple(want.shape), kind)], variant)
        assert found.status == 0, found.said
        np.testing.assert_allclose(
            found.outputs[0], want.numpy(), atol=tolerance * float(want.abs().max()), rtol=tolerance
        )


def test_on_paper_a_product_in_tiles_is_before_the_same_in_loops(tmp_path):
    linear = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(linear, (torch.randn(256, 256),)), tmp_path / "region.pt2")
    task = {"region": "region.pt2", "name": "R", "config": {"deployment_target": "tensorrt"}, "arch_spec": ORIN}
    figures = {each["id"]: each["paper_us"] for each in generate(task, tmp_path)["candidates"]}
    tiles = [us for name, us in figures.items() if name.startswith("templates-gemm")]
    others = [us for name, us in figures.items() if not name.startswith("templates-gemm")]
    assert tiles
    assert others
    assert 2 * max(tiles) < min(others)


def test_a_product_with_its_epilogue_and_a_barrier_too_few(emulator, tmp_path):
    torch.manual_seed(0)
    inputs = (torch.randn(41, 40), torch.randn(24, 40), torch.randn(24))
    bundle = first_template(tmp_path, Linear(), inputs)
    assert bundle.source.count('extern "C" __global__') == 2  # one kernel for each variant
    held_against(emulated_bundles.build(emulator, bundle, tmp_path / "plain"), inputs, Linear()(*inputs))
    # Both forms hand their tiles on by the barrier at the end of a step.
    end_of_step = "      }\n      __syncthreads();\n    }"
    assert bundle.header.count(end_of_step) == 2
    header = bundle.header.replace(end_of_step, "      }\n    }")
    assert all(races(emulator, bundle, header, tmp_path / "races", inputs, (41, 24)))
    counts = matrix_instructions(bundle, tmp_path / "device")
    assert counts["f32"] == 0
    assert counts["f16"] > 0


def races(emulator, bundle, header, directory, inputs, shape):
    """Give what the emulation says of both variants with another header."""
    assert header != bundle.header
    faulty = KernelBundle(header=header, source=bundle.source, meta=bundle.meta)
    library = emulated_bundles.build(emulator, faulty, directory, Check.RACES)
    for variant, kind in enumerate(("float32", "float16")):
        given = [x.numpy().astype(kind) for x in inputs]
        found = emulated_bundles.call(library, given, [(shape, kind)], variant)
        yield "race:" in found.said and found.status != 0


def matrix_instructions(bundle, directory):
    """Count, per kernel of the cubin, the instructions of the tensor cores: opcode 0x23c, HMMA, of 16 bytes each."""
    directory.mkdir()
    arch = ArchSpec.parse(ORIN)
    cubin, facts = compile_for(bundle, arch, nvrtc_for(arch), directory, "optional")
    assert all(kernel.spill_bytes == 0 for kernel in facts.kernels), facts
    elf = ELFFile(io.BytesIO(cubin))
    texts = {s.name.removeprefix(".text."): s.data() for s in elf.iter_sections() if s.name.startswith(".text.")}
    return {
        name.rsplit("_", 1)[1]: sum(text[at] | (text[at + 1] & 0xF) << 8 == 0x23C for at in range(0, len(text), 16))
        for name, text in texts.items()
    }


def test_attention_is_one_kernel(emulator, tmp_path):
    torch.manual_seed(0)
    inputs = tuple(torch.randn(1, 2, 37, 24) for _ in range(3))
    bundle = first_template(tmp_path, Attention(), inputs)
    assert bundle.source.count('extern "C" __global__') == 2
    held_against(emulated_bundles.build(emulator, bundle, tmp_path / "plain"), inputs, Attention()(*inputs))
    # The tiles of keys (floats), and of queries, keys and values (halves), are filled by all threads for all.
    header = bundle.header.replace("cp_async_wait<1>();\n      __syncthreads();", "cp_async_wait<1>();")
    header = header.replace("__syncthreads();\n      float s[R][C]", "float s[R][C]")
    assert all(races(emulator, bundle, header, tmp_path / "races", inputs, (1, 2, 37, 24)))
    counts = matrix_instructions(bundle, tmp_path / "device")
    assert counts["f32"] == 0
    assert counts["f16"] > 0
