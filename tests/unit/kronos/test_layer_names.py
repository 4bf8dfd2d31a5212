from __future__ import annotations

import pytest

from ytk_core.errors import UserError
from ytk_kronos.engine_files import Layer, PluginNode
from ytk_kronos.layer_names import check_plugins_used, map_layers, plugin_uses


def layer(
    name: str, kind: str = "Convolution", *, sources: str = "", inputs: tuple[str, ...] = (), external: bool = False
) -> Layer:
    names = tuple(source for source in sources.split(",") if source)
    return Layer(
        name=name, type=kind, exec_type="jit", precision="f32", sources=names, inputs=inputs, external=external
    )


NAMES = {
    "conv_0": "conv_0",
    "getitem": "conv_0",
    "bn": "bn",
    "relu": "relu",
    "relu_out": "relu",
    "softmax_1": "softmax_1",
    "y": "add_1",
}
PLUG = PluginNode(name="fold", namespace="yasp", op="Col2im", version="1")


def mapped(*layers: Layer, nodes: tuple[PluginNode, ...] = ()) -> dict[str, Layer]:
    return {each.name: each for each in map_layers(layers, NAMES | {node.name: node.name for node in nodes}, nodes)}


def test_a_merged_layer_stands_for_all_its_nodes():
    assert mapped(layer("conv_0", sources="conv_0,bn,relu_out"))["conv_0"].onnx_nodes == ("conv_0", "bn", "relu")


@pytest.mark.parametrize(
    "name", ["conv_0/WithoutBiases", "conv_0.0", "conv_0.0.1", "getitem/sink_port_0", "conv_0/WithoutBiases.0"]
)
def test_an_engines_suffixes_are_stripped(name):
    assert mapped(layer(name, sources=name))[name].onnx_nodes == ("conv_0",)


def test_a_name_that_really_has_a_suffix_goes_first():
    names = NAMES | {"conv_0.0": "other"}
    (found,) = map_layers([layer("conv_0.0")], names, ())
    assert found.onnx_nodes == ("other",)


def test_a_reorder_belongs_to_both_sides():
    found = mapped(
        layer("conv_0", sources="conv_0"),
        layer("conv_0_f32_acdb_f32_abcd_softmax_1", "Reorder", inputs=("conv_0",)),
        layer("softmax_1", "Softmax", sources="softmax_1"),
    )
    assert found["conv_0_f32_acdb_f32_abcd_softmax_1"].onnx_nodes == ("conv_0", "softmax_1")


def test_a_reorder_of_a_graph_input_belongs_to_what_follows():
    found = mapped(
        layer("x", "Input", sources="x"),
        layer("x_abcd_acdb_conv_0", "Reorder", inputs=("x",)),
        layer("conv_0", sources="conv_0"),
    )
    assert found["x_abcd_acdb_conv_0"].onnx_nodes == ("conv_0",)


def test_what_the_engine_put_in_belongs_to_what_feeds_it():
    found = mapped(
        layer("relu", sources="relu"),
        layer("VariadicSplit_17", "Split", inputs=("relu",)),
        layer("Convert_3", "Convert", inputs=("VariadicSplit_17",)),
        layer("Constant_9", "Const"),
    )
    assert found["Convert_3"].onnx_nodes == ("relu",)
    assert found["Constant_9"].onnx_nodes == ()


def test_a_layer_named_after_a_graph_output_is_found_by_the_tensor():
    assert mapped(layer("y", "Eltwise", sources="y"))["y"].onnx_nodes == ("add_1",)


def test_only_an_external_layer_is_a_plugin():
    ran = mapped(layer("fold", "Reference", sources="fold", external=True), nodes=(PLUG,))
    assert ran["fold"].plugin == "yasp::Col2im"
    own = mapped(layer("fold", "Col2Im", sources="fold"), nodes=(PLUG,))
    assert own["fold"].plugin == ""


def test_a_plugin_node_that_is_no_plugin_layer_is_an_error():
    layers = map_layers([layer("fold", "Col2Im", sources="fold")], {"fold": "fold"}, (PLUG,))
    with pytest.raises(
        UserError, match=r"1 of 1 plugin nodes are no plugin layer in the built engine: fold \(yasp::Col2im\)"
    ) as caught:
        check_plugins_used(layers, (PLUG,))
    assert caught.value.code == "plugin_not_used"


def test_uses_are_counted_per_placeholder_and_nested_nodes_are_believed():
    second = PluginNode(name="fold_2", namespace="yasp", op="Col2im", version="1")
    nested = PluginNode(name="inner", namespace="", op="Scan", version="1", nested=True)
    nodes = (PLUG, second, nested)
    layers = map_layers([layer("fold", "Reference", external=True)], {node.name: node.name for node in nodes}, nodes)
    uses = {use.placeholder: (use.nodes, use.layers, use.ok) for use in plugin_uses(layers, nodes)}
    assert uses == {"yasp::Col2im": (2, 1, False), "::Scan": (1, 1, True)}
    with pytest.raises(UserError, match="fold_2"):
        check_plugins_used(layers, nodes)
