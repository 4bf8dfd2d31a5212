"""Operators in contexts and higher-order operators: none is hidden, each keeps its module and its line."""

import onnx
import pytest

from ytk_core.formats.prepare_outputs import read_fx_nodes

pytestmark = pytest.mark.torch
MODEL = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x):
        {context}:
            return {body}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Attention(), Attention()

    def forward(self, x):
        return self.second(self.first(x)) + 1

def get_fwd_args():
    return (torch.randn(2, 8),)
"""
OFF = 'with torch.autocast("cpu", enabled=False)'
ON = 'with torch.autocast("cpu", dtype=torch.bfloat16)'
CONTEXTS = {
    "disabled autocast": OFF,
    "no_grad": "with torch.no_grad()",
    "set_grad_enabled": "with torch.set_grad_enabled(True)",
    "both": f"with torch.no_grad(), {OFF.removeprefix('with ')}",
    "inference of one kind inside of another": f"with torch.no_grad():\n          {OFF}",
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_what_happens_in_a_context_keeps_its_module(run_prepare, name):
    source = MODEL.format(context=CONTEXTS[name], body="torch.special.i0(self.q(x))")
    report, out = run_prepare(source, plugins=("yasp::Own=Linear",), samples=1)
    assert {row.name: row.sites for row in report.rows} == {"Own": 2, "I0": 2}
    paths = {each.proposed_op: [site.module_path for site in each.call_site_shapes] for each in report.candidates}
    assert paths == {"yasp::Own": ["first.q", "second.q"], "yasp::I0": ["first", "second"]}
    assert {node.module_path for node in read_fx_nodes(out / "fx_nodes.json") if "linear" in node.target} == {
        "first.q",
        "second.q",
    }


def test_an_enabled_autocast_has_its_casts_and_what_is_disabled_inside_of_it_has_none(run_prepare):
    source = MODEL.format(context=ON, body="inner(self, x)") + (
        "\ndef inner(self, x):\n    y = self.q(x)\n    with torch.autocast('cpu', enabled=False):\n"
        "        return torch.special.i0(y.float())\n"
    )
    report, out = run_prepare(source, profile="trt1015", samples=1)
    assert {row.name: row.sites for row in report.rows} == {"I0": 2}
    model = onnx.load(out / "model.onnx", load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {info.name: info.type.tensor_type.elem_type for info in inferred.graph.value_info}
    carved = [types[name] for node in model.graph.node if node.op_type == "I0" for name in node.input]
    assert carved == [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT]
    assert onnx.TensorProto.BFLOAT16 in types.values()


def test_what_happens_in_an_enabled_autocast_keeps_its_module(run_prepare):
    source = MODEL.format(context=ON, body="torch.special.i0(self.q(x).float())")
    report, out = run_prepare(source, profile="trt1015", samples=1)
    paths = {each.proposed_op: [site.module_path for site in each.call_site_shapes] for each in report.candidates}
    assert paths == {"yasp::I0": ["first", "second"]}
    nodes = [node for node in read_fx_nodes(out / "fx_nodes.json") if node.op == "call_function"]
    assert [node.module_path for node in nodes if "linear" in node.target] == ["first.q", "second.q"]
    casts = [node.module_path for node in nodes if "_to_copy" in node.target]
    assert {"first.q", "second.q"} <= set(casts), "the casts belong to modules, too"


HIDDEN = {
    "checkpoint": (
        "torch.utils.checkpoint.checkpoint(lambda y: torch.special.i0(self.q(y)), x, use_reentrant=False)",
        {"I0"},
    ),
    "cond": ("torch.cond(x.sum() > 0, lambda y: self.q(y), lambda y: torch.special.i0(y), (x,))", {"Cond"}),
    "vmap": ("torch.func.vmap(lambda y: torch.special.i0(self.q(y)))(x)", {"I0"}),
    "native cond": ("torch.cond(x.sum() > 0, lambda y: self.q(y), lambda y: y.relu(), (x,))", set()),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_higher_order_operator_hides_is_carved_or_exported(run_prepare, name):
    body, expected = HIDDEN[name]
    source = "import torch.utils.checkpoint\n" + MODEL.format(context="if True", body=body)
    report, _ = run_prepare(source, samples=2)
    assert {row.name.removesuffix("_1") for row in report.rows} == expected
    assert sum(row.sites for row in report.rows) == 2 * len(expected)
    assert all(verdict.ok for verdict in report.accuracy)


@pytest.mark.parametrize(
    ("branch", "names"), [("y.relu()", {"Cond": 2}), ("y.relu() * self.scale", {"Cond": 1, "Cond_1": 1})]
)
def test_conditions_that_compute_the_same_share_one_plugin(run_prepare, branch, names):
    body = f"torch.cond(x.sum() > 0, lambda y: {branch}, lambda y: torch.special.i0(y), (x,))"
    source = MODEL.format(context="if True", body=body).replace(
        "self.first, self.second = Attention(), Attention()",
        "self.first, self.second = Attention(), Attention()\n        self.first.scale, self.second.scale = 2.0, 3.0",
    )
    report, _ = run_prepare(source, samples=2)
    assert {row.name: row.sites for row in report.rows} == names
    assert all(verdict.ok for verdict in report.accuracy)
