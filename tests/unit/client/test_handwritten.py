"""The frame of a kernel to be written by hand: what its contract says for every kind of border, and what a check of it finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from ytk_client.handwritten.check import check_kernel
from ytk_client.handwritten.contract import contract_of
from ytk_client.handwritten.skeleton import is_skeleton, make_skeleton, with_state
from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.kernel_bundle import KernelBundle, parse_bundle, render_bundle
from ytk_core.formats.plugin_meta import BY_HAND, SKELETON, Extent, Role
from ytk_core.formats.region import RegionSpec, RegionTensor

CPU = ArchSpec.parse("amd64-cpuv3-linux-glibc236-ov20264")
ORIN = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
H100 = ArchSpec.parse("amd64-sm90-linux-cu130-trt1014")
F32, F16, BF16, I64, BOOL = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT64, DType.BOOL


def tensor(
    name: str, dtype: DType, *shape: int, dynamic: tuple[int, ...] = (), role: Role = Role.ACTIVATION
) -> RegionTensor:
    return RegionTensor(name=name, dtype=dtype, shape=shape, dynamic_axes=dynamic, role=role)


def region(inputs: list[RegionTensor], outputs: list[RegionTensor], **more: object) -> RegionSpec:
    fields = {
        "namespace": "yasp",
        "name": "Upsample2x",
        "version": "1",
        "aten_ops": ("aten.upsample",),
        "digest": digest_bytes(b"region"),
        "torch_version": "2.13.0",
    }
    return RegionSpec(inputs=tuple(inputs), outputs=tuple(outputs), **(fields | more))


UPSAMPLE = region(
    [tensor("x", F32, 2, 8, 16, 16, dynamic=(0, 2)), tensor("w", F32, 8, 1, 3, 3, role=Role.PARAMETER)],
    [tensor("y", F32, 2, 8, 32, 32, dynamic=(0, 2))],
    extents=(Extent(input=0, axis=2, min=8, opt=16, max=64),),
)
LOOKUP = region(
    [tensor("table", F32, 10, 4), tensor("2.index", I64, 6)], [tensor("rows", F32, 6, 4), tensor("2.index", I64, 6)]
)


def written(bundle: KernelBundle, body: str) -> KernelBundle:
    """The bundle as somebody leaves it who wrote the kernel."""
    source = bundle.source.replace(
        next(line for line in bundle.source.splitlines() if "#define YTK_SKELETON" in line) + "\n", ""
    )
    line = next(line for line in source.splitlines() if "#error" in line)
    return msgspec.structs.replace(bundle, source=source.replace(line, body))


class TestContract:
    def test_what_the_engine_hands_over(self):
        for arch, index_type in ((CPU, I64), (ORIN, DType.INT32), (H100, I64)):
            variants = contract_of(LOOKUP, arch).meta.variants
            assert {variant.inputs[1].dtype for variant in variants} == {index_type}
            assert [variant.id for variant in variants] == (["f32"] if arch is CPU else ["f32", "f16"])
        halves = contract_of(region([tensor("x", F16, 4)], [tensor("y", F16, 4)]), CPU).meta
        assert halves.variants[0].inputs[0].dtype is F32, (
            "CPU engines give custom operations float32 on a half-precision model"
        )

    def test_open_extents(self):
        contract = contract_of(UPSAMPLE, CPU)
        assert contract.meta.inputs[0].dims == [None, 8, None, 16]
        assert contract.meta.outputs[0].shape == ["in0.d0", "8", "in0.d2 * 2", "32"]
        assert contract.guesses == ("output y axis 2 is taken for in0.d2 * 2 (captured: 32)",)
        assert contract.meta.extents == list(UPSAMPLE.extents)
        assert contract.meta.inputs[1].role is Role.PARAMETER

    @pytest.mark.parametrize(
        ("inputs", "output", "shape", "guessed"),
        [
            ([tensor("x", F32, 6, dynamic=(0,))], tensor("y", F32, 6, dynamic=(0,)), ["in0.d0"], False),
            (
                [tensor("x", F32, 6, 6, dynamic=(0, 1))],
                tensor("y", F32, 3, 6, dynamic=(0, 1)),
                ["in0.d0 // 2", "in0.d1"],
                True,
            ),
            (
                [tensor("x", F32, 4, dynamic=(0,)), tensor("z", F32, 4, dynamic=(0,))],
                tensor("y", F32, 4, dynamic=(0,)),
                ["in0.d0"],
                True,
            ),
        ],
    )
    def test_an_extent_is_a_guess_unless_one_axis_alone_has_it(self, inputs, output, shape, guessed):
        contract = contract_of(region(inputs, [output]), CPU)
        assert contract.meta.outputs[0].shape == shape
        assert bool(contract.guesses) == guessed

    def test_an_extent_that_nothing_gives(self):
        with pytest.raises(UserError, match=r"output y axis 0 \(captured: 7\) is open") as caught:
            contract_of(region([tensor("x", F32, 4, dynamic=(0,))], [tensor("y", F32, 7, dynamic=(0,))]), CPU)
        assert caught.value.code == "unknown_extent"

    def test_names_are_identifiers_and_differ(self):
        meta = contract_of(LOOKUP, CPU).meta
        names = [each.name for each in (*meta.inputs, *meta.outputs)]
        assert names == ["table", "_2_index", "rows", "_2_index_3"]


class TestSkeleton:
    @pytest.mark.parametrize("arch", [CPU, ORIN, H100], ids=lambda arch: arch.engine)
    @pytest.mark.parametrize(
        "spec",
        [UPSAMPLE, LOOKUP, region([tensor("x", BF16)], [tensor("y", BOOL)])],
        ids=["upsample", "lookup", "scalars"],
    )
    def test_it_is_a_kernel_bundle_and_says_that_it_is_a_skeleton(self, spec, arch):
        bundle = make_skeleton(spec, arch).bundle
        assert parse_bundle(render_bundle(bundle)) == bundle
        assert is_skeleton(bundle)
        assert bundle.meta.generator.strategy == SKELETON
        assert with_state(bundle) is bundle

    def test_the_same_region_gives_the_same_text(self):
        assert render_bundle(make_skeleton(UPSAMPLE, CPU).bundle) == render_bundle(make_skeleton(UPSAMPLE, CPU).bundle)

    def test_a_written_kernel_is_none_and_its_contract_learns_it(self):
        done = written(make_skeleton(UPSAMPLE, CPU).bundle, "  return YTK_OK;")
        assert not is_skeleton(done)
        assert with_state(done).meta.generator.strategy == BY_HAND
        back = msgspec.structs.replace(with_state(done), header="#define YTK_SKELETON\n")
        assert with_state(back).meta.generator.strategy == SKELETON

    def test_a_comment_is_no_mark(self):
        done = written(make_skeleton(UPSAMPLE, CPU).bundle, "  return YTK_OK;  // no #define YTK_SKELETON any more")
        assert not is_skeleton(done)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
class TestCheck:
    @pytest.fixture
    def check(self, tmp_path: Path):
        def run(
            bundle: KernelBundle, arch: ArchSpec = CPU, spec: RegionSpec | None = UPSAMPLE
        ) -> dict[str, tuple[bool | None, str]]:
            path = tmp_path / "kernel.module_source.py"
            path.write_text(render_bundle(bundle))
            return {each.check: (each.ok, each.found + each.fix) for each in check_kernel(path, arch, region=spec)}

        return run

    def test_a_skeleton_passes(self, check):
        found = check(make_skeleton(UPSAMPLE, CPU).bundle)
        assert [name for name, (ok, _) in found.items() if not ok] == []
        assert found["skeleton"][1].startswith("yes: the launcher returns YTK_UNSUPPORTED")

    def test_a_skeleton_without_its_mark_does_not_compile(self, check):
        bundle = make_skeleton(UPSAMPLE, CPU).bundle
        bare = msgspec.structs.replace(bundle, source=bundle.source.replace("#define YTK_SKELETON", "//"))
        ok, text = check(bare)["compiles"]
        assert not ok
        assert 'error: #error "write the kernel here' in text

    def test_a_written_kernel(self, check):
        done = written(
            make_skeleton(UPSAMPLE, CPU).bundle,
            "  for (int k = 0; k < 4; ++k) out0[k] = in0[k] * in1[0];\n  return YTK_OK;",
        )
        found = check(done)
        assert found["compiles"][0]
        assert found["skeleton"] == (True, "no")

    def test_what_does_not_compile_is_named_with_its_line(self, check):
        done = written(make_skeleton(UPSAMPLE, CPU).bundle, "  out0[0] = missing;")
        ok, text = check(done)["compiles"]
        assert not ok
        assert "SOURCE:" in text
        assert "'missing' was not declared" in text

    def test_a_kernel_of_another_region(self, check):
        other = region([tensor("x", I64, 4)], [tensor("y", F32, 4)])
        ok, text = check(make_skeleton(UPSAMPLE, CPU).bundle, spec=other)["region"]
        assert not ok
        assert "arity: the node has 1 inputs, the plugin 2 (x, w)" in text
        same_border = msgspec.structs.replace(UPSAMPLE, digest=digest_bytes(b"other"))
        ok, text = check(make_skeleton(UPSAMPLE, CPU).bundle, spec=same_border)["region"]
        assert not ok
        assert "it was written for another one" in text

    def test_another_kind_of_target_is_not_compiled(self, check):
        found = check(make_skeleton(UPSAMPLE, CPU).bundle, arch=H100)
        assert not found["target"][0]
        assert "compiles" not in found
        assert "launcher compiles" not in found

    def test_cuda(self, check):
        bundle = make_skeleton(UPSAMPLE, H100).bundle
        found = check(bundle, arch=H100)
        assert found["launcher compiles"][0]
        assert found["device code compiles"][0] in {True, None}, "None: NVRTC is not installed"
        if found["device code compiles"][0]:
            bare = msgspec.structs.replace(bundle, source=bundle.source.replace("#define YTK_SKELETON", "//"))
            ok, text = check(bare, arch=H100)["device code compiles"]
            assert not ok
            assert "write out0[k] here" in text
