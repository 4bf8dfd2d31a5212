"""Conformance: what the frontend relies on in torch's and onnxscript's private parts. A bump of either fails here first."""

import operator

import onnx_ir as ir
import pytest
import torch
from torch import nn

from ytk_client.frontend import torch_adapter as adapter

pytestmark = pytest.mark.torch


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("hidden", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        values, indices = torch.cummax(self.layer(x) * self.scale + self.hidden + torch.tensor([1.0, 2.0, 3.0]), 1)
        return {"a": values, "b": (indices, [torch.special.i0(x)])}


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return adapter.decompose(torch.export.export(Small().eval(), (torch.randn(2, 3),)))


def test_registry_is_built_once():
    assert adapter.torchlib_registry() is adapter.torchlib_registry()
    assert adapter.torchlib_registry().opset_version == adapter.EXPORTER_OPSET


def test_refusal_text(program):
    refused = {node.name: adapter.refusal_text(node) for node in program.graph.nodes if node.op == "call_function"}
    assert {name for name, text in refused.items() if text} == {"cummax", "bessel_i0"}
    assert "No decompositions registered" in str(refused["cummax"])


def test_original_operator_of_a_primitive(program):
    nodes = {node.name: node for node in program.graph.nodes}
    assert adapter.original_operator(nodes["bessel_i0"]).name() == "aten::i0"
    assert adapter.original_operator(nodes["cummax"]).name() == "aten::cummax"


def test_lifted_tensors_have_role_value_and_name(program):
    found = {qualified: role for role, _, qualified in adapter.lifted_tensors(program).values()}
    constants = [name for name, role in found.items() if role == "constant"]
    assert len(constants) == 1
    del found[constants[0]]
    assert found == {"layer.weight": "parameter", "layer.bias": "parameter", "scale": "buffer", "hidden": "buffer"}


def test_borders_and_output_paths(program):
    assert adapter.user_input_names(program) == ["x"]
    assert adapter.output_paths(program.call_spec.out_spec) == [("a",), ("b", 0), ("b", 1, 0)]
    names = adapter.user_output_names(program)
    assert len(names) == 3
    assert all(names)
    assert adapter.mutated_buffers(program) == []
    assert len(adapter.flatten_output(Small()(torch.randn(2, 3)))) == 3


def test_module_scopes_and_getitem(program):
    nodes = {node.name: node for node in program.graph.nodes}
    scopes = adapter.module_scopes(nodes["linear"]) if "linear" in nodes else adapter.module_scopes(nodes["addmm"])
    assert scopes[0][0] == ""
    assert scopes[-1] == ("layer", "torch.nn.modules.linear.Linear")
    assert [node.name for node in nodes.values() if adapter.is_getitem(node)] == ["getitem", "getitem_1"]
    assert nodes["getitem"].target is operator.getitem


def test_translate_emits_placeholders_with_their_origin():
    library = torch.library.Library("ytk_test_adapter", "FRAGMENT")
    library.define("pair(Tensor x) -> (Tensor, Tensor)")
    library.impl("pair", lambda x: (x.clone(), x + 1), "CompositeExplicitAutograd")
    torch.library.register_fake(
        "ytk_test_adapter::pair", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=library
    )

    class Pair(nn.Module):
        def forward(self, x):
            a, b = torch.ops.ytk_test_adapter.pair(x)
            return a * b

    program = adapter.decompose(torch.export.export(Pair(), (torch.randn(2),)))
    op = torch.ops.ytk_test_adapter.pair.default
    placeholder = adapter.Placeholder("yasp", "Pair", {"plugin_namespace": "yasp", "plugin_version": "1"}, 2)
    model = adapter.optimize(adapter.translate(program, {op: placeholder}))
    [node] = [node for node in model.graph if node.domain == "yasp"]
    assert (node.op_type, len(node.outputs)) == ("Pair", 2)
    assert {name: attribute.as_string() for name, attribute in node.attributes.items()} == dict(placeholder.attributes)
    assert model.opset_imports == {"": adapter.EXPORTER_OPSET, "yasp": 1}
    assert adapter.fx_node_name(node) == "pair"
    assert [list(value.shape or ()) for value in node.outputs] == [[2], [2]]
    assert op not in adapter.torchlib_registry().functions


def test_fx_node_name_survives_serialisation():
    program = adapter.decompose(torch.export.export(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.randn(1, 2),)))
    model = ir.from_proto(ir.to_proto(adapter.optimize(adapter.translate(program, {}))))
    assert "relu" in {adapter.fx_node_name(node) for node in model.graph}


def test_failing_node_is_found_in_the_translators_frame():
    class Bare(nn.Module):
        def forward(self, x):
            return x.cummax(0)[0].relu()

    program = adapter.decompose(torch.export.export(Bare(), (torch.randn(2),)))
    with pytest.raises(torch.onnx.OnnxExporterError) as caught:
        adapter.translate(program, {})
    assert adapter.failing_fx_node(caught.value).name == "cummax"
    assert adapter.failing_fx_node(ValueError("x")) is None


def test_error_checks_of_linalg_are_dropped_with_their_tokens():
    class Inverse(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x) + torch.linalg.inv(x + 1)

    program = adapter.decompose(torch.export.export(Inverse(), (torch.eye(3),)))
    targets = [str(node.target) for node in program.graph.nodes]
    assert "with_effects" not in " ".join(targets)
    assert [spec.kind.name for spec in program.graph_signature.input_specs] == ["USER_INPUT"]
    assert [spec.kind.name for spec in program.graph_signature.output_specs] == ["USER_OUTPUT"]
    program.graph.lint()


def test_data_dependence_is_told_from_other_failures():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    from ytk_client.frontend.user_code import chain

    with pytest.raises(Exception, match="guard on data-dependent") as caught:
        torch.export.export(Branch(), (torch.randn(2),))
    assert any(adapter.is_data_dependent(link) for link in chain(caught.value))
    assert not adapter.is_data_dependent(ValueError("no"))


def test_unbacked_extents():
    class Find(nn.Module):
        def forward(self, x):
            return torch.nonzero(x)

    program = torch.export.export(Find(), (torch.randn(4),))
    [node] = [node for node in program.graph.nodes if "nonzero" in str(node.target)]
    rows, columns = node.meta["val"].shape
    assert adapter.is_unbacked(rows)
    assert not adapter.is_unbacked(columns)


def test_a_kernel_is_registered_as_torch_does_it():
    target = torch.ops.aten.sinc.default
    saved = dict(target.py_kernels)
    first, key, function = torch._C.DispatchKey.XLA, torch._C.DispatchKey.IPU, len
    try:
        adapter._py_impl(target, first)(function)
        assert adapter._register_kernel(target, key)(function) is function
        assert dict(target.py_kernels) == saved | {first: function, key: function}
        with pytest.raises(RuntimeError, match="override"):
            adapter._register_kernel(target, key)(function)
        with pytest.raises(AssertionError):
            adapter._register_kernel(target, torch._C.DispatchKey.Python)(function)
    finally:
        target.py_kernels.clear()
        target.py_kernels.update(saved)
        target._dispatch_cache.clear()
