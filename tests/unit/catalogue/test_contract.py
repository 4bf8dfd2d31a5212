"""The contracts of the shipped plugins, and the bundles made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.catalogue import ENTRIES, NAMESPACE, bundles_for, by_operator, entry_of, plain_attributes
from ytk_core.catalogue.contract import kernel_text
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.kernel_bundle import parse_bundle, render_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.node_contracts import NodeContract, TensorContract
from ytk_core.preflight import compare_node_meta
from ytk_core.targets import load_profile

from fakes.catalogue_samples import SAMPLES

CPU, GPU = DeploymentTarget.CPU, DeploymentTarget.TENSORRT
ORIN = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86")
HERE = ArchSpec.parse("amd64-cpuv3-linux-glibc236-ov20264")
KERNELS = Path(__file__).parents[3] / "core/ytk_core/catalogue/kernels"


def node(operator: str, name: str = "", node_name: str = "n", **changes: object) -> NodeContract:
    """The node that prepare writes for a sample, its outputs' shapes left to the plugin."""
    entry, sample = by_operator(operator), SAMPLES[operator]
    inputs = [
        TensorContract(DType(str(tensor.dtype).removeprefix("torch.")), tensor.dim(), tuple(tensor.shape))
        for tensor in sample.tensors
    ]
    own = {"plugin_namespace": NAMESPACE, "plugin_version": "1", **plain_attributes(sample.attributes), **changes}
    return NodeContract(
        namespace=NAMESPACE,
        name=name or entry.name,
        version="1",
        node_name=node_name,
        inputs=tuple(inputs),
        outputs=tuple(TensorContract(tensor.dtype or DType.FLOAT32, tensor.rank, None) for tensor in entry.outputs),
        attributes=own,
    )


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
class TestEveryEntry:
    def test_its_bundle_is_one(self, entry, target):
        bundle = entry.bundle(target, SAMPLES[entry.operator].attributes)
        text = render_bundle(bundle)
        assert parse_bundle(text) == bundle
        assert "attr." not in text.split("PLUGIN_META")[1]
        assert bundle.meta.plugin_namespace == NAMESPACE

    def test_it_stands_for_its_node(self, entry, target):
        arch = HERE if target is CPU else ORIN
        meta = entry.meta(target, SAMPLES[entry.operator].attributes)
        for precision in ("fp32",) if target is CPU else ("fp32", "fp16"):
            assert compare_node_meta(node(entry.operator), meta, precision, arch) == []

    def test_no_engine_has_its_name(self, entry, target):
        profiles = {CPU: ("openvino", "onnxruntime"), GPU: ("trt86", "trt101", "trt1015")}[target]
        assert not any(load_profile(name).is_builtin(entry.name) for name in profiles)


def test_every_kernel_file_is_used_and_exists():
    used = {name for entry in ENTRIES for target in (CPU, GPU) for name in entry.source_files(target)[0]}
    used |= {entry.source_files(target)[1] for entry in ENTRIES for target in (CPU, GPU)}
    assert used == {path.name for path in KERNELS.iterdir()}
    assert all(kernel_text(name).endswith("\n") for name in used)


def test_every_plugin_has_a_page_with_its_attributes():
    pages = [path.read_text(encoding="utf-8") for path in (KERNELS.parents[3] / "docs/catalogue").glob("*.md")]
    table = next(page for page in pages if page.startswith("# The plugins we ship"))
    for entry in ENTRIES:
        assert f"`{entry.name}`" in table
        own = [page for page in pages if page is not table and f"`{entry.name}`" in page]
        assert any(all(f"`{name}`" in page for name in (*entry.ints, *entry.floats)) for page in own), entry.name


class TestBundles:
    def test_one_for_all_nodes_of_a_name(self):
        nodes = [node("sparse_subm_conv3d", node_name="a"), node("sparse_subm_conv3d", node_name="b", batch_size=[1])]
        found = bundles_for([*nodes, node("sparse_to_dense", name="SparseToDense_1")], CPU)
        assert list(found) == ["SparseSubMConv3d", "SparseToDense_1"]
        assert found["SparseSubMConv3d"].meta.sites == 2
        assert found["SparseToDense_1"].meta.plugin_name == "SparseToDense_1"
        assert found["SparseToDense_1"].meta.outputs[0].shape == ["2", "in0.d1", "4", "6", "5"]

    def test_other_namespaces_are_left_alone(self):
        other = node("roi_align")
        assert bundles_for([NodeContract(**{**vars(other), "namespace": "yasp"})], CPU) == {}

    def test_what_decides_an_extent_is_fixed(self):
        meta = entry_of("RoiAlignPlugin").meta(CPU, SAMPLES["roi_align"].attributes)
        assert {each.name: each.value for each in meta.attributes} == {
            "output_size": [3, 2],
            "sampling_ratio": None,
            "aligned": None,
            "spatial_scale": None,
        }

    def test_nodes_of_one_name_with_other_extents(self):
        nodes = [node("sparse_conv3d"), node("sparse_conv3d", max_voxels=[9])]
        with pytest.raises(UserError) as caught:
            bundles_for(nodes, CPU)
        assert caught.value.code == "bad_catalogue_node"

    @pytest.mark.parametrize("value", [None, "7", [1.5], []])
    def test_an_attribute_that_is_no_extent(self, value):
        with pytest.raises(UserError) as caught:
            bundles_for([node("sparse_conv3d", max_voxels=value)], CPU)
        assert caught.value.code == "bad_catalogue_node"
        assert "max_voxels" in caught.value.message

    def test_a_plugin_of_another_release(self):
        with pytest.raises(UserError) as caught:
            entry_of("SparseTransformer_1")
        assert caught.value.code == "unknown_catalogue_plugin"
        assert "SparseToDense" in caught.value.hint


def test_attributes_as_nodes_carry_them():
    assert plain_attributes({"a": True, "b": (1, 2), "c": 0.5, "d": [1, 0.5]}) == {
        "a": [1],
        "b": [1, 2],
        "c": [0.5],
        "d": [1.0, 0.5],
    }
