"""Selectors, dynamic axes, nested inputs, taps and dry runs, through the whole of prepare."""

import json

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

from ytk_client.cli.prepare import prepare as command
from ytk_client.frontend.dynamic import parse_dynamic
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Extent
from ytk_core.formats.prepare_outputs import CandidateReason, read_candidates, read_fx_nodes, read_plugins
from ytk_core.formats.reference import read_reference
from ytk_core.formats.region import read_region_spec
from ytk_core.node_contracts import node_contracts_from_onnx

SMALL = """
class ConvNorm(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = ConvNorm(4, 1), ConvNorm(4, 1), ConvNorm(4, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x)))

def get_fwd_args():
    return (torch.randn(2, 4, 6, 6),)
"""


@pytest.mark.torch
def test_selected_regions_are_written_like_refused_ones_and_tapped(run_prepare):
    report, out = run_prepare(
        SMALL,
        plugins=("abc::Dw=ConvNorm@where=a,b", "::Down=mod:c"),
        debug_taps=True,
        dynamic=("x:0=1,2,5",),
        samples=3,
    )
    rows = {row.name: row for row in read_plugins(out / "plugins.json")}
    assert rows["Dw"].selector == "abc::Dw=ConvNorm@where=a,b"
    assert (rows["Dw"].sites, rows["Dw"].namespace, rows["Down"].placeholder) == (2, "abc", "::Down")
    by_op = {each.proposed_op: each for each in read_candidates(out / "plugin_candidates" / "candidates.json")}
    dw = by_op["abc::Dw"]
    assert dw.reason is CandidateReason.SELECTOR
    assert [site.module_path for site in dw.call_site_shapes] == ["a", "b"]
    assert dw.op_inventory == {"aten::conv2d": 1, "aten::relu": 1}
    assert dw.extents == (Extent(input=0, axis=0, min=1, opt=2, max=5),)
    assert (0, 1, 4) in {(axis.input, axis.axis, axis.extent) for axis in dw.constant_axes}
    assert (0, 0) not in {(axis.input, axis.axis) for axis in dw.constant_axes}
    spec = read_region_spec(out / "plugin_candidates" / "Dw.pt2")
    assert spec is not None
    assert spec.extents == dw.extents
    assert spec.inputs[0].dynamic_axes == (0,)
    contracts = {contract.name: contract for contract in node_contracts_from_onnx(out / "model.onnx")}
    assert contracts["Dw"].namespace == "abc"
    assert contracts["Down"].namespace == ""
    nodes = {node.name: node for node in read_fx_nodes(out / "fx_nodes.json")}
    # The batch norm was folded before anything was carved, and is still accounted for.
    norms = [node for name, node in nodes.items() if "batch_norm" in name and not name.startswith(("p_", "b_"))]
    assert [node.region for node in norms] == ["abc::Dw", "abc::Dw", "::Down"]
    assert all(verdict.ok for verdict in report.accuracy)

    reference = read_reference(out / "model.reference.npz")
    assert [sample.inputs["x"].shape[0] for sample in reference.samples] == [2, 1, 5]
    noted = {entry.key: entry.value for entry in onnx.load(out / "model.onnx", load_external_data=False).metadata_props}
    assert json.loads(noted["ytk.dynamic"]) == [{"input": "x", "axis": 0, "min": 1, "opt": 2, "max": 5}]
    debug = onnx.load(out / "model.debug.onnx", load_external_data=False)
    taps = [info.name for info in debug.graph.output][1:]
    tapped = read_reference(out / "model.debug.reference.npz")
    assert [info.name for info in tapped.outputs] == [reference.outputs[0].name, *taps]
    # What one node gives and the next one takes has one tap; weights, inputs and outputs of the graph have none.
    assert taps == ["tap_node_abc_Dw_out0", "tap_node_abc_Dw_1_out0"]
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(debug))
    first = tapped.samples[0].outputs
    assert first[taps[0]].shape == first[taps[1]].shape == (2, 4, 6, 6)
    assert not np.array_equal(first[taps[0]], first[taps[1]])


@pytest.mark.torch
def test_an_extent_of_one_that_a_generated_kernel_will_not_serve_is_told(run_prepare):
    """The range in the region's program begins at 2, whatever it was captured with; its contract is made of that."""
    report, out = run_prepare(SMALL, plugins=("yasp::Dw=ConvNorm@where=a,b",), dynamic=("x:0=1,2,5",))
    [note] = [each for each in report.notes if "a generated kernel serves" in each]
    assert "yasp::Dw" in note
    assert "from an extent of 2 on, not from 1" in note
    program = torch.export.load(out / "plugin_candidates" / "Dw.pt2")
    assert {(int(each.lower), int(each.upper)) for each in program.range_constraints.values()} == {(2, 5)}
    report, _ = run_prepare(SMALL, plugins=("yasp::Dw=ConvNorm@where=a,b",), dynamic=("x:0=2,2,5",))
    assert not [each for each in report.notes if "a generated kernel serves" in each]


def test_a_branch_that_torch_takes_for_every_extent_but_one_is_seen(run_prepare):
    with pytest.raises(UserError) as caught:
        run_prepare(
            "class Model(nn.Module):\n    def forward(self, x):\n        return x * 2 if x.shape[0] > 1 else x\n"
            "def get_fwd_args():\n    return (torch.randn(4, 3),)\n",
            dynamic=("x:0=1,4,8",),
        )
    assert caught.value.code == "export_differs"


def test_a_usual_extent_of_one_stays_dynamic(run_prepare):
    _, out = run_prepare(SMALL, plugins=("yasp::Dw=ConvNorm@where=a,b",), dynamic=("x:0=1,1,5",), samples=3)
    [dw] = read_candidates(out / "plugin_candidates" / "candidates.json")
    assert dw.extents == (Extent(input=0, axis=0, min=1, opt=1, max=5),)
    samples = read_reference(out / "model.reference.npz").samples
    assert [sample.inputs["x"].shape[0] for sample in samples] == [5, 1, 5]
    program = torch.export.load(out / "plugin_candidates" / "Dw.pt2")
    [bounds] = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (2, 5)  # torch itself counts from 2; the true range is in the spec


NESTED = """
from dataclasses import dataclass

@dataclass
class Wanted:
    mean: torch.Tensor
    parts: dict

class Model(nn.Module):
    def forward(self, image, extra):
        y = image * extra["scale"] + extra["pair"][1]
        return Wanted(y.mean(-1), {"sum": y + 1, "both": (y, image)})

def get_fwd_args():
    half = dict(dtype=torch.float16)
    return {"image": torch.randn(2, 3, **half), "extra": {"scale": torch.randn(3, **half), "pair": (torch.randn(1, **half), torch.randn(3, **half))}}
"""


@pytest.mark.torch
def test_nested_named_inputs_and_outputs_of_a_half_precision_model(run_prepare):
    _, out = run_prepare(NESTED)
    reference = read_reference(out / "model.reference.npz")
    assert [info.name for info in reference.inputs] == ["image", "extra_scale", "extra_pair_0", "extra_pair_1"]
    assert [info.name for info in reference.outputs] == ["mean", "parts_sum", "parts_both_0", "parts_both_1"]
    assert {str(info.dtype) for info in reference.inputs + reference.outputs} == {"float16"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("dynamic", "code", "says"),
    [
        ("y:0=1,2,3", "bad_dynamic", "there are x"),
        ("x:7=1,2,3", "bad_dynamic", "rank 4"),
        ("x:1=1,4,8", "dynamic_refused", "does not take every extent"),
    ],
)
def test_a_dynamic_axis_that_cannot_be(run_prepare, dynamic, code, says):
    with pytest.raises(UserError) as caught:
        run_prepare(SMALL, dynamic=(dynamic,))
    assert caught.value.code == code
    assert says in caught.value.message


@pytest.mark.parametrize("text", ["x=1,2,3", "x:0=1,2", "x:0=3,2,1", "x:0=0,1,2", "x:0=2,2,2", "x:a=1,2,3"])
def test_a_dynamic_axis_in_bad_words(text):
    with pytest.raises(UserError) as caught:
        parse_dynamic([text])
    assert caught.value.code == "bad_dynamic"
    assert text in caught.value.message


def test_a_dynamic_axis_twice():
    with pytest.raises(UserError, match="second time"):
        parse_dynamic(["x:0=1,2,3", "x:0=1,2,4"])


@pytest.mark.torch
def test_a_dry_run_writes_nothing_but_its_report(tmp_path, write_model):
    model = write_model("""
        class Model(nn.Module):
            def forward(self, x, grid):
                return F.grid_sample(x, grid, align_corners=False).mean(2) + x.tril().sum(2)[..., :1, :1]

        def get_fwd_args():
            return torch.randn(1, 2, 3, 3, 3), torch.rand(1, 3, 3, 3, 3)
    """)
    before = {path for path in tmp_path.rglob("*") if path.name != "__pycache__"}
    report = tmp_path / "report.json"
    result = CliRunner().invoke(
        command, [str(model), "--dryrun", "--samples", "1", "--report", str(report)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert {path for path in tmp_path.rglob("*") if path.name != "__pycache__"} - before == {report}
    found = json.loads(report.read_text())
    [carved] = found["carved"]
    assert (carved["placeholder"], carved["reason_class"], carved["sites"]) == ("yasp::GridSampler", "rank", 1)
    assert "grid_sample" in carved["source_line"]
    assert found["coverage_percent"] == pytest.approx(100 * (found["operators"] - 1) / found["operators"], abs=0.01)
    assert found["supported"]["aten.tril.default"] == 1
    assert found["unsupported"] == {"aten.grid_sampler.default": 1}
    assert sum(found["supported"].values()) + 1 == found["operators"]
    assert {each["op"] for each in found["rewritten"]} >= {"ReduceMean"}
    assert "yasp::GridSampler" in result.stdout
    assert "coverage" in result.stderr
    gate = [str(model), "--dryrun", "--samples", "1", "--min-coverage"]
    assert CliRunner().invoke(command, [*gate, "50"]).exit_code == 0
    below = CliRunner().invoke(command, [*gate, "99"])
    assert below.exit_code == 1
    assert "--min-coverage is 99" in below.stderr


def test_onnx_out_and_report_go_with_the_right_kind_of_run(tmp_path):
    assert CliRunner().invoke(command, ["m.py"]).exit_code == 2
    arguments = ["m.py", "--onnx-out", str(tmp_path / "m.onnx"), "--report", "r.json"]
    assert CliRunner().invoke(command, arguments).exit_code == 2


@pytest.mark.torch
def test_the_empty_namespace_is_for_targets_that_look_plugins_up_by_name(run_prepare):
    with pytest.raises(UserError, match="cannot be empty") as caught:
        run_prepare(SMALL, plugins=("::Dw=ConvNorm",), profile="openvino")
    assert caught.value.code == "empty_namespace"
