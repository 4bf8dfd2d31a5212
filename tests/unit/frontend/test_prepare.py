"""prepare from end to end on small models: what it carves, how it names it, what it writes."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from ytk_client.frontend import PrepareReport
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Role
from ytk_core.formats.prepare_outputs import CandidateReason, read_candidates, read_fx_nodes, read_plugins
from ytk_core.formats.reference import read_reference
from ytk_core.formats.region import read_region_spec
from ytk_core.formats.weights_npz import read_array, read_index

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[3] / "examples"


def placeholders(out: Path) -> list[onnx.NodeProto]:
    model = onnx.load(str(out / "model.onnx"), load_external_data=False)
    return [node for node in model.graph.node if node.domain]


def names(report: PrepareReport) -> list[str]:
    return [row.name for row in report.rows]


def region_runs(out: Path, name: str) -> None:
    """The .pt2 computes its own captured outputs from its captured inputs."""
    program = torch.export.load(out / "plugin_candidates" / f"{name}.pt2")
    inputs = torch.load(out / "plugin_candidates" / f"{name}.inputs.pt", weights_only=True)
    results = program.module()(*inputs)
    for index, result in enumerate(results if isinstance(results, tuple) else [results]):
        want = read_array(out / "plugin_candidates" / f"{name}.io.npz", f"site0/out{index}")
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("example", "name", "inputs", "reason"),
    [
        ("fold", "Col2im", 1, CandidateReason.TARGET_ILLEGAL),
        ("volume_lifter", "GridSampler", 2, CandidateReason.RANK),
    ],
)
def test_examples(run_prepare, example, name, inputs, reason):
    report, out = run_prepare(EXAMPLES / example / "model.py", samples=3)
    assert names(report) == [name]
    assert report.opset == 17
    [row] = read_plugins(out / "plugins.json")
    assert (row.has_plugin, row.placeholder, row.gaia_input) == (
        False,
        f"yasp::{name}",
        f"plugin_candidates/{name}.pt2",
    )
    [candidate] = read_candidates(out / "plugin_candidates" / "candidates.json")
    assert candidate.reason is reason
    assert len(candidate.node_inputs) == inputs
    assert "model.py:" in candidate.source_line
    [node] = placeholders(out)
    assert (node.domain, node.op_type, len(node.input)) == ("yasp", name, inputs)
    attributes = {attribute.name: attribute.s.decode() for attribute in node.attribute}
    assert attributes == {"plugin_namespace": "yasp", "plugin_version": "1"}
    spec = read_region_spec(out / row.gaia_input)
    assert spec is not None
    assert spec.digest == candidate.region_digest
    region_runs(out, name)
    reference = read_reference(out / "model.reference.npz")
    assert len(reference.samples) == 3
    model = onnx.load(str(out / "model.onnx"))
    assert [info.name for info in reference.outputs] == [value.name for value in model.graph.output]
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 10e6


def test_carved_model_runs_with_torch_in_the_place_of_the_plugin(run_prepare):
    """The whole ONNX, placeholder included, gives the reference outputs when the region runs in torch."""
    _, out = run_prepare(EXAMPLES / "fold" / "model.py")
    model = onnx.load(str(out / "model.onnx"))
    region = torch.export.load(out / "plugin_candidates" / "Col2im.pt2").module()
    [node] = [node for node in model.graph.node if node.domain]
    cut = onnx.utils.Extractor(model).extract_model(["image"], list(node.input))
    from onnx.reference import ReferenceEvaluator

    for sample in read_reference(out / "model.reference.npz").samples:
        [entering] = ReferenceEvaluator(cut).run(None, sample.inputs)
        result = region(torch.from_numpy(entering)).numpy()
        np.testing.assert_allclose(result, sample.outputs["output"], rtol=1e-4, atol=1e-5)


def test_three_refused_operators_are_listed_at_once(run_prepare):
    report, out = run_prepare(
        """
        class Inverse(nn.Module):
            def forward(self, x):
                return torch.linalg.inv(x)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inverse = Inverse()
                self.linear = nn.Linear(4, 4)
            def forward(self, x):
                y = torch.special.i0(self.linear(self.inverse(x)))
                return F.fold(y.reshape(1, 4, 4), (4, 4), (2, 2), stride=2)

        def get_fwd_args():
            return (torch.randn(4, 4) + 4 * torch.eye(4),)
        """
    )
    assert names(report) == ["LinalgInvEx", "I0", "Col2im"]
    reasons = {candidate.proposed_op: candidate for candidate in report.candidates}
    assert reasons["yasp::LinalgInvEx"].reason is CandidateReason.EXPORT_UNSUPPORTED
    assert reasons["yasp::LinalgInvEx"].module_path == "inverse"
    assert "No decompositions registered" in reasons["yasp::I0"].unsupported_reason
    assert reasons["yasp::Col2im"].reason is CandidateReason.TARGET_ILLEGAL
    for name in names(report):
        region_runs(out, name)


def test_same_operator_and_attributes_share_a_name_others_get_one_of_their_own(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, x):
                a = F.fold(x, (8, 8), (2, 2), stride=2)
                b = F.fold(x * 2, (8, 8), (2, 2), stride=2)
                c = F.fold(x.reshape(1, 4, 48)[:, :, :16], (5, 5), (2, 2))
                return a + b, c

        def get_fwd_args():
            return (torch.randn(1, 12, 16),)
        """
    )
    assert [(row.name, row.sites) for row in report.rows] == [("Col2im", 2), ("Col2im_1", 1)]
    assert [node.op_type for node in placeholders(out)] == ["Col2im", "Col2im", "Col2im_1"]
    sites = report.candidates[0].call_site_shapes
    assert len({site.node for site in sites}) == 2
    assert {"site0/in0", "site1/in0", "site1/out0"} <= set(read_index(out / "plugin_candidates" / "Col2im.io.npz"))


def test_sites_of_different_shapes_share_one_dynamic_region(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.special.i0(x), torch.special.i0(x[:, :2])

        def get_fwd_args():
            return (torch.randn(3, 5),)
        """
    )
    assert [(row.name, row.sites) for row in report.rows] == [("I0", 2)]
    spec = read_region_spec(out / "plugin_candidates" / "I0.pt2")
    assert spec is not None
    assert spec.inputs[0].dynamic_axes == (1,)
    axes = report.candidates[0].constant_axes
    assert [(axis.axis, axis.extent) for axis in axes] == [(0, 3)]
    program = torch.export.load(out / "plugin_candidates" / "I0.pt2").module()
    assert program(torch.zeros(3, 7)).shape == (3, 7)


def test_module_called_twice(run_prepare):
    report, _ = run_prepare(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.fold = nn.Fold((4, 4), 2, stride=2)
            def forward(self, x):
                return self.fold(x) + self.fold(-x * x)

        def get_fwd_args():
            return (torch.randn(1, 8, 4),)
        """
    )
    assert [(row.name, row.sites) for row in report.rows] == [("Col2im", 2)]
    paths = [site.module_path for site in report.candidates[0].call_site_shapes]
    assert [path.partition("@")[0] for path in paths] == ["fold", "fold"]


def test_parameters_are_inputs_of_the_node(run_prepare):
    report, out = run_prepare(
        """
        class Distance(nn.Module):
            def __init__(self):
                super().__init__()
                self.centres = nn.Parameter(torch.randn(6, 4))
            def forward(self, x):
                return torch.cdist(x, self.centres)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.distance = Distance()
            def forward(self, x):
                return self.distance(x).exp()

        def get_fwd_args():
            return (torch.randn(5, 4),)
        """
    )
    [candidate] = report.candidates
    roles = {tensor.name: tensor.role for tensor in candidate.node_inputs}
    assert sorted(roles.values()) == [Role.ACTIVATION, Role.PARAMETER]
    assert candidate.parameters["tensors"]["distance.centres"]["shape"] == [6, 4]
    [node] = placeholders(out)
    assert "distance.centres" in node.input
    region_runs(out, names(report)[0])


def test_region_in_the_middle_with_two_outputs_and_one_as_graph_output(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, x):
                values, indices = torch.cummax(x, dim=1)
                return {"running": values, "where": indices, "scaled": values * 2}

        def get_fwd_args():
            return (torch.randn(3, 5),)
        """
    )
    [node] = placeholders(out)
    assert len(node.output) == 2
    model = onnx.load(str(out / "model.onnx"))
    assert [value.name for value in model.graph.output] == ["running", "where", "scaled"]
    region_runs(out, names(report)[0])
    known = {info.name for info in (*model.graph.value_info, *model.graph.output)}
    assert set(node.output) <= known


def test_integer_input(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, scores, labels):
                return (labels & 2).float() * scores

        def get_fwd_args():
            return {"labels": torch.tensor([0, 1, 2, 3]), "scores": torch.randn(4)}
        """
    )
    assert report.rows
    reference = read_reference(out / "model.reference.npz")
    dtypes = {info.name: str(info.dtype) for info in reference.inputs}
    assert dtypes == {"labels": "int64", "scores": "float32"}
    integers = [
        tensor for candidate in report.candidates for tensor in candidate.node_inputs if tensor.dtype == "int64"
    ]
    assert integers
    assert reference.samples[1].inputs["labels"].max() <= 3


def test_data_dependent_output_cannot_be_a_plugin(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.bincount((x > 0).long().flatten()).float()

        def get_fwd_args():
            return (torch.randn(4, 4),)
        """
    )
    [candidate] = report.candidates
    assert candidate.cannot_be_plugin is not None
    assert "data-dependent" in candidate.cannot_be_plugin
    assert report.rows[0].gaia_input is None
    assert not (out / "plugin_candidates" / f"{report.rows[0].name}.pt2").exists()


def test_complex_values_stay_inside_one_region(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.fft.irfft(torch.fft.rfft(x) * 2).relu()

        def get_fwd_args():
            return (torch.randn(2, 16),)
        """
    )
    assert len(report.rows) == 1
    assert len(report.candidates[0].op_inventory) >= 2
    region_runs(out, names(report)[0])


def test_a_region_with_a_complex_output_gives_pairs_of_numbers(run_prepare):
    report, out = run_prepare(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.fft.rfft(x)

        def get_fwd_args():
            return (torch.randn(2, 16),)
        """
    )
    assert names(report) == ["FftR2c"]
    assert report.candidates[0].cannot_be_plugin is None
    assert read_reference(out / "model.reference.npz").outputs[0].shape == (2, 9, 2)
    region_runs(out, "FftR2c")


def test_nothing_to_carve_for_a_newer_target(run_prepare):
    report, out = run_prepare(EXAMPLES / "fold" / "model.py", arch="amd64-cpuv4-linux-glibc236-ort132")
    assert report.rows == ()
    assert report.opset == 18
    assert not (out / "plugin_candidates").exists()
    assert json.loads((out / "plugins.json").read_text())["rows"] == []


def test_outputs_that_are_inputs_constants_or_twice_the_same(run_prepare):
    _, out = run_prepare(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("grid", torch.arange(6.0))
            def forward(self, x):
                y = x * 2
                return {"x": x, "relu": y, "again": y, "grid": self.grid, "deep": [y + 1, (y + 2,)]}

        def get_fwd_args():
            return (torch.randn(3),)
        """
    )
    reference = read_reference(out / "model.reference.npz")
    assert [info.name for info in reference.inputs] == ["x"]
    assert [info.name for info in reference.outputs] == ["x_out", "relu", "again", "grid", "deep_0", "deep_1_0"]
    onnx.checker.check_model(str(out / "model.onnx"), full_check=True)


def test_fx_nodes_name_module_line_and_what_became_of_them(run_prepare):
    _, out = run_prepare(EXAMPLES / "volume_lifter" / "model.py")
    nodes = {node.name: node for node in read_fx_nodes(out / "fx_nodes.json")}
    sampler = nodes["grid_sampler"]
    assert (sampler.module_path, sampler.region) == ("lifter", "yasp::GridSampler")
    assert sampler.module_class == "model.Lifter"
    assert sampler.source_file.endswith("model.py")
    onnx_names = {node.name for node in onnx.load(str(out / "model.onnx"), load_external_data=False).graph.node}
    assert set(sampler.onnx_nodes) <= onnx_names
    assert sampler.onnx_nodes
    convolution = nodes["conv2d_1"]
    assert (convolution.module_path, convolution.target) == ("backbone.3", "aten.conv2d.default")
    assert set(convolution.onnx_nodes) <= onnx_names


def test_derived_name_differs_from_the_targets_own_operators(run_prepare):
    """A placeholder named like a built-in importer would be taken by it without a word."""
    report, _ = run_prepare(
        """
        @torch.library.custom_op("ytk_test::relu", mutates_args=())
        def own_relu(x: torch.Tensor) -> torch.Tensor:
            return x.clamp(min=0)

        @own_relu.register_fake
        def _(x):
            return torch.empty_like(x)

        class Model(nn.Module):
            def forward(self, x):
                return own_relu(x) + 1

        def get_fwd_args():
            return (torch.randn(3),)
        """
    )
    assert names(report) == ["ReluRegion"]
    assert "the model's own" in str(report.candidates[0].cannot_be_plugin)


def test_rerun_refreshes_its_own_files_and_leaves_others(run_prepare, write_model):
    two = """
        class Model(nn.Module):
            def forward(self, x):
                return torch.special.i0(x), F.fold(x, (4, 4), (2, 2), stride=2)

        def get_fwd_args():
            return (torch.randn(1, 4, 4),)
        """
    _, out = run_prepare(two)
    folder = out / "plugin_candidates"
    foreign = [
        out / "sources" / "Col2im.module_source.py",
        out / "plugins" / "Col2im.so",
        folder / "notes.txt",
        folder / "Mine.pt2",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    before = (folder / "Col2im.pt2").read_bytes()
    report, _ = run_prepare(two.replace("torch.special.i0(x), ", ""))
    assert names(report) == ["Col2im"]
    assert not list(folder.glob("I0.*"))
    assert (folder / "Col2im.pt2").exists()
    assert [path.read_text() for path in foreign] == ["mine"] * 4
    assert before
    run_prepare(two.replace("torch.special.i0(x), F.fold(x, (4, 4), (2, 2), stride=2)", "x + 1"))
    assert sorted(path.name for path in folder.iterdir()) == ["Mine.pt2", "notes.txt"]
    assert not list(out.rglob(".ytk-*"))


def test_complex_weights_are_real_inputs_of_the_region(run_prepare):
    """A spectral layer: the weight enters the plugin as pairs of real numbers, as the ONNX holds it."""
    report, out = run_prepare(
        """
        class Spectral(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(3, 3, 5, dtype=torch.complex64))
            def forward(self, x):
                spectrum = torch.fft.rfft(x)[..., :5]
                mixed = torch.einsum("bix,iox->box", spectrum, self.weight)
                return torch.fft.irfft(mixed, n=16)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.spectral = Spectral()
            def forward(self, x):
                return self.spectral(x).relu()

        def get_fwd_args():
            return (torch.randn(2, 3, 16),)
        """
    )
    [row] = report.rows
    inputs = {tensor.role: tensor for tensor in report.candidates[0].node_inputs}
    assert inputs[Role.PARAMETER].rank == 4
    assert "spectral.weight" in report.candidates[0].parameters["tensors"]
    [node] = placeholders(out)
    weights = {tensor.name: list(tensor.dims) for tensor in onnx.load(str(out / "model.onnx")).graph.initializer}
    assert [weights.get(name) for name in node.input] == [[3, 3, 5, 2], None]
    region_runs(out, row.name)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"samples": 0}, "bad_option"),
        ({"namespace": ""}, "bad_option"),
        ({"namespace": "a b"}, "bad_option"),
        ({"profile": "xnnpack"}, "no_profile"),
        ({"profile": "trt3"}, "no_profile"),
        ({"arch": "amd64-sm87"}, "bad_arch_spec"),
        # A shell variable that was not set is no wish for the default target.
        ({"arch": ""}, "no_profile"),
        ({"profile": ""}, "no_profile"),
    ],
)
def test_options_are_checked_first(run_prepare, tmp_path, options, code):
    with pytest.raises(UserError) as caught:
        run_prepare(tmp_path / "no_model.py", **options)
    assert caught.value.code == code


def test_a_namespace_of_ones_own(run_prepare):
    report, out = run_prepare(EXAMPLES / "fold" / "model.py", namespace="mine")
    assert report.rows[0].placeholder == "mine::Col2im"
    [node] = placeholders(out)
    assert node.domain == "mine"
    model = onnx.load(str(out / "model.onnx"), load_external_data=False)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17, "mine": 1}


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("layer", ["nn.Conv2d(3, 4, 3)", "nn.ConvTranspose2d(3, 4, 3)"])
def test_a_folded_batch_norm_keeps_the_element_type(run_prepare, dtype, layer):
    source = f"""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential({layer}, nn.BatchNorm2d(4), nn.ReLU()).to(torch.{dtype})

        def forward(self, x):
            return self.body(x)

    def get_fwd_args():
        return (torch.randn(1, 3, 8, 8, dtype=torch.{dtype}),)
    """
    report, out = run_prepare(source, profile="trt1015", samples=1)
    assert report.rows == ()
    model = onnx.load(out / "model.onnx")
    if (
        dtype != "bfloat16"
    ):  # for which ONNX has convolutions from opset 22 on only; TensorRT reads them in older ones, too
        onnx.checker.check_model(model, full_check=True)
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)}
    assert kinds == {getattr(onnx.TensorProto, dtype.upper() if dtype != "float32" else "FLOAT")}
