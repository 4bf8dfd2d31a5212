"""Was it the kernel that ran? Calls are counted behind the engine, node by node; a layer's name alone proves nothing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from ytk_core.errors import UserError
from ytk_kronos import engine_tasks
from ytk_kronos.engine_files import Layer, LayersFile, PluginNode
from ytk_kronos.engines.base import EngineOptions
from ytk_kronos.layer_names import calls_by_node, check_kernels_called, plugin_uses

from fakes.kronos_models import FLOAT, custom, save

FOLD, NORM = (
    PluginNode(name=name, namespace="yasp", op=op, version="1") for name, op in (("/f", "Fold"), ("/n", "Norm"))
)
INNER = PluginNode(name="/b/f", namespace="yasp", op="Fold", version="1", nested=True)


def layer(node: PluginNode) -> Layer:
    return Layer(
        name=node.name,
        type="Reference",
        exec_type="",
        precision="f32",
        onnx_nodes=(node.name,),
        plugin=node.placeholder,
    )


@pytest.mark.parametrize(
    ("calls", "ok", "unusual", "idle"),
    [
        ({"/f": 10, "/n": 10}, True, False, ()),
        ({"/f": 10}, False, True, ("/n",)),
        ({"/f": 10, "/n": 25}, True, True, ()),
        (None, True, False, ()),
    ],
)
def test_calls_say_whether_a_kernel_was_used(calls, ok, unusual, idle):
    uses = plugin_uses([layer(FOLD), layer(NORM)], [FOLD, NORM], calls, 10)
    norm = uses[1]
    assert (norm.placeholder, norm.ok, norm.unusual, norm.idle) == ("yasp::Norm", ok, unusual, idle)
    assert uses[0].ok
    if idle:
        with pytest.raises(
            UserError, match=r"kernel of yasp::Norm was never called in 10 runs of the engine, for /n"
        ) as caught:
            check_kernels_called(uses)
        assert caught.value.code == "plugin_not_used"
    else:
        check_kernels_called(uses)


def test_what_a_branch_decides_is_neither_idle_nor_unusual():
    (use,) = plugin_uses([layer(FOLD)], [FOLD, INNER], {"/f": 10}, 10)
    assert (use.nodes, use.nested, use.calls, use.ok, use.unusual) == (2, 1, 10, True, False)


def test_an_engines_names_are_led_back_to_nodes():
    names = {"/f": "/f", "y": "/f", "/n": "/n"}
    assert calls_by_node({"y": 3, "/f": 2, "/n.0": 4, "stranger": 9}, names) == {"/f": 5, "/n": 4}


def test_the_host_counts_the_calls_of_each_node(engine, plugin, arch, tmp_path):
    nodes = [
        custom("Same", ["x"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        custom("Same", ["r"], ["b"], "second"),
        helper.make_node("Add", ["b", "r"], ["y"], name="add"),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ("N", 4))}, {"y": FLOAT})
    options = EngineOptions(arch=arch, threads=1)
    built = engine.build(model, [plugin("identity")], options)
    built.save(tmp_path / "m.blob")
    full = {"x": np.ones((2, 4), np.float32)}
    for loaded in (built, engine.load(tmp_path / "m.blob", [plugin("identity")], options)):
        counter = engine_tasks._CallCounter(loaded)
        for _ in range(3):
            loaded.run(full)
        assert {name: n for name, n in counter.calls().items() if name in {"first", "second"}} == {
            "first": 3,
            "second": 3,
        }
        assert counter.runs() == 3


def test_an_engine_that_computes_a_node_by_other_means_is_told_on():
    layers = LayersFile(inputs=(), outputs=(), layers=(), plugin_nodes=(FOLD,), onnx_names={"/f": "/f"})
    measured = engine_tasks._Measured(row=None, calls={}, runs=4)
    lines: list[str] = []
    uses = engine_tasks._uses(measured, [layer(FOLD)], layers, lines.append)
    assert lines == ["plugin yasp::Fold: 0 kernel calls of 1 nodes in 4 runs, which is not once a node and run"]
    with pytest.raises(UserError, match="never called in 4 runs"):
        check_kernels_called(uses)
