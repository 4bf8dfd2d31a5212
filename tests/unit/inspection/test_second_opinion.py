"""``inspect --second-opinion``: a real parser beside our rules; the child is real, the parser in it a fake or NVIDIA's."""

import importlib.util
import sys
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from ytk_client.cli.inspect import inspect as command
from ytk_client.inspection import Request, Severity, inspect_file, parser_task, second_opinion
from ytk_client.inspection.onnx_cut import cut, name_by_key
from ytk_core.agent.tasks import run_task_locally
from ytk_core.errors import FailureClass, NotAvailableError, UserError

import fakes

FAKE = Path(fakes.__path__[0]) / "fake_parser"
IMAGE = [1, 4, 8, 8]
HAS_PARSER = importlib.util.find_spec(parser_task.PACKAGE) is not None
real = pytest.mark.skipif(not HAS_PARSER, reason="tensorrt-rtx-cu13 is not installed (extra second-opinion)")


def save(path, nodes, outputs, *, values=(), opset=17):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        value_info=infos,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("yasp", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def chain(path):
    """Relu -> a placeholder -> Det -> Neg: what is refused lies behind what no parser knows."""
    plugin = {"domain": "yasp", "plugin_namespace": "yasp", "plugin_version": "1"}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Own", ["r"], ["p"], name="own", **plugin),
        helper.make_node("Det", ["p"], ["d"], name="det"),
        helper.make_node("Neg", ["d"], ["y"], name="neg"),
    ]
    return save(path, nodes, [("y", [1, 4])], values=[("p", IMAGE)])


@pytest.fixture
def fake(monkeypatch):
    """Let the child find the fake parser; the child is one process of ours, without a sandbox."""

    def run(ref, task, workdir, policy, log):
        del policy
        environment = {"PYTHONPATH": f"{FAKE}:{':'.join(filter(None, sys.path))}"}
        return run_task_locally(ref, task, workdir, env=environment, log=log, blame=FailureClass.CANDIDATES)

    monkeypatch.setattr(second_opinion, "_in_child", lambda _mode: run)
    monkeypatch.setattr(second_opinion.importlib.util, "find_spec", lambda _name: object())


def opinions(found):
    return [finding for finding in found.findings if finding.kind == "second-opinion"]


def test_what_the_parser_refuses_is_cut_out_and_it_goes_on_behind(fake, tmp_path):
    nodes = [
        helper.make_node("Det", ["x"], ["d"], name="det"),
        helper.make_node("Unique", ["d"], ["u"], name="unique"),
        helper.make_node("Relu", ["d"], ["y"], name="relu"),
    ]
    model = save(tmp_path / "m.onnx", nodes, [("y", [1, 4]), ("u", [None])])
    found = inspect_file(model, Request.of("onnxruntime", second_opinion=True))
    # ONNX Runtime has both: so these are differences.
    assert [(each.node, each.severity) for each in opinions(found)] == [("det", "warning"), ("unique", "warning")]
    assert "tensorrt_rtx 0.0.fake refuses it (unsupported node: no Det)" in opinions(found)[0].message
    assert opinions(found)[0].source == "checkDet, fake.cpp:7"
    assert not found.ok


def test_placeholders_are_not_put_before_the_parser_and_agreement_is_no_finding(fake, tmp_path):
    found = inspect_file(chain(tmp_path / "m.onnx"), Request.of("trt86", second_opinion=True))
    assert opinions(found) == []
    content = found.content["second_opinion"]
    assert content["parser"] == "tensorrt_rtx 0.0.fake"
    assert [(row["node"], row["parser"], row["judged"]) for row in content["nodes"]] == [
        ("det", "unsupported node: no Det", True)
    ]
    assert dict(found.fields)["second opinion"] == "tensorrt_rtx 0.0.fake refuses 1 nodes"


def test_a_parser_that_ends_its_process_is_named_with_the_node(fake, tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Abs", ["r"], ["y"])]
    found = inspect_file(save(tmp_path / "m.onnx", nodes, [("y", IMAGE)]), Request.of(second_opinion=True))
    (finding,) = opinions(found)
    assert finding.severity is Severity.WARNING
    assert "tensorrt_rtx ended at 'y' and judged nothing" in finding.message
    assert "SIGABRT" in finding.message


def test_without_the_parser_the_command_says_so_and_does_not_pass(monkeypatch, tmp_path):
    monkeypatch.setattr(second_opinion.importlib.util, "find_spec", lambda _name: None)
    model = chain(tmp_path / "m.onnx")
    done = CliRunner().invoke(command, [str(model), "--second-opinion"])
    assert isinstance(done.exception, NotAvailableError)
    assert done.exception.code == "no_second_opinion"


def test_it_is_about_models_only(tmp_path):
    plugins = tmp_path / "fx_nodes.json"
    plugins.write_text("[]")
    with pytest.raises(UserError, match=r"no ONNX model"):
        inspect_file(plugins, Request.of(second_opinion=True))


def test_cutting_keeps_a_graph_that_can_be_parsed(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Det", ["r"], ["inner"])], "b", [], [helper.make_tensor_value_info("inner", 1, [1, 4])]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Neg", ["r"], ["n"]),
        helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=body),
        helper.make_node("Exp", ["n"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, IMAGE), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("i", 1, [1, 4])],
        value_info=[helper.make_tensor_value_info("r", 1, IMAGE), helper.make_tensor_value_info("y", 1, IMAGE)],
    )
    owners = name_by_key(graph)
    assert owners["inner"] == "i"
    # The type of n is unknown, so what needs it goes, too; the inner graph still needs r from outside.
    assert cut(graph, {"r", "n"}) == ["y"]
    assert [node.name for node in graph.node] == ["i"]
    assert [info.name for info in graph.input] == ["x", "c", "r"]
    # An output of the graph that was cut away is none any more; what is left over becomes one.
    assert cut(graph, {"i"}) == []
    assert (list(graph.node), list(graph.output)) == ([], [])


@real
def test_the_real_parser_refuses_what_our_rules_refuse_and_takes_what_they_take(tmp_path):
    found = inspect_file(chain(tmp_path / "m.onnx"), Request.of("trt1015", second_opinion=True))
    assert opinions(found) == []
    (row,) = found.content["second_opinion"]["nodes"]
    assert (row["node"], row["judged"]) == ("det", True)
    assert row["parser"].startswith("unsupported node")


@real
def test_the_real_parser_knows_the_rules_that_were_taken_from_it(tmp_path):
    ones = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("w", 1, [4], [1.0] * 4))
    norm = helper.make_node(
        "BatchNormalization", ["x", "w", "w", "w", "w"], ["y", "m", "v"], name="norm", training_mode=1
    )
    model = save(tmp_path / "m.onnx", [ones, norm], [("y", IMAGE)])
    found = inspect_file(model, Request.of("trt1015", second_opinion=True))
    (row,) = [row for row in found.content["second_opinion"]["nodes"] if row["node"] == "norm"]
    assert row["rules"] == "BatchNormalization: training_mode must be 0"
    assert "training_mode" in row["parser"]
