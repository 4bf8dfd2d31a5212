"""Every silent misparse of the shipped profiles is seen in a model, in its bad form only; and other objections."""

from __future__ import annotations

import numpy as np
import pytest

from ytk_client.inspection import Request, Severity, onnx_read
from ytk_core.errors import UserError
from ytk_core.targets import load_profile, profile_names
from ytk_core.targets.profiles import Kind

from fakes.onnx_nodes import BOOL, I64, IMAGE, of_kind

REDUCE9 = [f"Reduce{word}" for word in ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"]]
AXES = np.array([1], np.int64)
PADS = np.array([0, 1, 0, 1], np.int64)
SCALES = np.array([1, 1, 2, 2], np.float32)
PLANE, ROW = (2, 4), (4,)
INDEX = (PLANE, I64)
POOL = {"kernel_shape": [2, 2]}

# rule id -> (profile, operator, bad form, good form); a form is (inputs, further arguments of one_node).
MISPARSES = {
    **{f"{op}.axes-input": ("trt86", op, ([IMAGE, AXES], {"opset": 18}), ([IMAGE], {"axes": [1]})) for op in REDUCE9},
    **{
        f"{op}.noop": (
            "trt86",
            op,
            ([IMAGE], {"opset": 18, "noop_with_empty_axes": 1}),
            ([IMAGE], {"opset": 18, "noop_with_empty_axes": 0}),
        )
        for op in REDUCE9
    },
    "AveragePool.dilations": (
        "trt86",
        "AveragePool",
        ([IMAGE], {"opset": 19, "dilations": [2, 1], **POOL}),
        ([IMAGE], {"opset": 19, "dilations": [1, 1], **POOL}),
    ),
    "MaxPool.dilations": ("trt86", "MaxPool", ([IMAGE], {"dilations": [2, 2], **POOL}), ([IMAGE], POOL)),
    "LpPool.dilations": (
        "trt86",
        "LpPool",
        ([IMAGE], {"opset": 18, "dilations": [1, 2], **POOL}),
        ([IMAGE], {"opset": 18, **POOL}),
    ),
    "GridSample.mode-names": (
        "trt101",
        "GridSample",
        ([IMAGE, (1, 8, 8, 2)], {"opset": 20, "mode": "linear"}),
        ([IMAGE, (1, 8, 8, 2)], {"opset": 16, "mode": "bilinear"}),
    ),
    "Pad.axes-86": (
        "trt86",
        "Pad",
        ([IMAGE, PADS, None, np.array([2, 3], np.int64)], {"opset": 18}),
        ([IMAGE, np.array([0, 0, 0, 1, 0, 0, 0, 1], np.int64)], {}),
    ),
    "Resize.antialias": (
        "trt86",
        "Resize",
        ([IMAGE, None, SCALES], {"opset": 18, "mode": "linear", "antialias": 1}),
        ([IMAGE, None, SCALES], {"opset": 18, "mode": "linear", "antialias": 0}),
    ),
    "Resize.axes-86": (
        "trt86",
        "Resize",
        ([IMAGE, None, SCALES[2:]], {"opset": 18, "axes": [2, 3]}),
        ([IMAGE, None, SCALES], {"opset": 18}),
    ),
    "ScatterElements.reduction": (
        "trt86",
        "ScatterElements",
        ([PLANE, INDEX, PLANE], {"reduction": "add"}),
        ([PLANE, INDEX, PLANE], {"reduction": "none"}),
    ),
    "ScatterND.reduction": (
        "trt86",
        "ScatterND",
        ([PLANE, ((3, 1), I64), (3, 4)], {"reduction": "mul"}),
        ([PLANE, ((3, 1), I64), (3, 4)], {}),
    ),
    "Split.num-outputs": (
        "trt86",
        "Split",
        ([ROW], {"opset": 18, "num_outputs": 3, "outputs": 3}),
        ([ROW, np.array([2, 2], np.int64)], {"outputs": 2}),
    ),
}


def executable(kind: Kind) -> dict[str, set[str]]:
    """Rule id to the TensorRT profiles it is about."""
    return {
        rule.id: set(rule.profiles)
        for entry in load_profile().ops.values()
        for rule in entry.rules
        if rule.kind is kind and set(rule.profiles) <= set(profile_names())
    }


def test_the_table_has_every_silent_misparse_of_the_data():
    assert set(MISPARSES) == set(executable(Kind.MISPARSE))


@pytest.mark.parametrize("rule_id", MISPARSES)
def test_a_silent_misparse_is_found_and_explained(look, rule_id):
    target, op, (inputs, more), _ = MISPARSES[rule_id]
    found = look(op, inputs, target=target, **more)
    (finding,) = of_kind(found, "misparse")
    assert (finding.rule_id, finding.severity, finding.node) == (rule_id, Severity.ERROR, "the_node")
    assert finding.source
    assert finding.fix
    assert op in finding.message
    assert not found.ok
    assert not of_kind(found, "invalid")  # a model that everybody else accepts


@pytest.mark.parametrize("rule_id", MISPARSES)
def test_the_good_form_is_no_misparse(look, rule_id):
    target, op, _, (inputs, more) = MISPARSES[rule_id]
    found = look(op, inputs, target=target, **more)
    assert of_kind(found, "misparse") == []
    assert not of_kind(found, "invalid")


def test_a_fault_in_reading_attributes_would_be_seen(look, monkeypatch):
    """Seeded: a reader that takes every attribute for 1 misses misparses that attributes decide, and no others."""
    monkeypatch.setattr(onnx_read, "attribute_value", lambda _attribute: 1)
    missed = set()
    for rule_id, (target, op, (inputs, more), _) in MISPARSES.items():
        if not of_kind(look(op, inputs, target=target, **more), "misparse"):
            missed.add(rule_id)
    assert {"MaxPool.dilations", "GridSample.mode-names"} <= missed
    assert not {f"{op}.axes-input" for op in REDUCE9} & missed


# (operator, inputs, arguments, target, kind, rule id)
OBJECTIONS = [
    (
        "Col2Im",
        [(1, 36, 64), np.array([8, 8], np.int64), np.array([3, 3], np.int64)],
        {"opset": 18},
        None,
        "missing-op",
        "missing-op",
    ),
    ("Det", [(3, 3)], {}, None, "missing-op", "missing-op"),
    ("Transpose", [(1,) * 9], {"perm": list(range(8, -1, -1))}, None, "rank", "max-rank"),
    ("GridSample", [(1, 1, 4, 4, 4), (1, 4, 4, 4, 3)], {"opset": 20}, "trt1015", "rank", "GridSample.rank"),
    ("Relu", [((2, 2), 5)], {"opset": 17, "out_dtype": 5}, None, "dtype", "dtypes"),
    ("CumSum", [ROW, ((), I64)], {}, None, "refuse", "CumSum.axis"),
    ("Gemm", [(3, 2), (2, 4)], {"opset": 17, "domain": "com.microsoft"}, None, "missing-op", "missing-op"),
]


@pytest.mark.parametrize(
    ("op", "inputs", "more", "target", "kind", "rule_id"), OBJECTIONS, ids=lambda value: str(value)[:24]
)
def test_an_illegal_node_is_named_with_rule_source_and_fix(look, op, inputs, more, target, kind, rule_id):
    finding = of_kind(look(op, inputs, target=target, **more), kind)[0]
    assert (finding.rule_id, finding.severity) == (rule_id, Severity.ERROR)
    assert finding.node == "the_node"
    assert finding.source
    assert finding.fix


def test_the_target_decides(look):
    volume = [(1, 1, 4, 4, 4), (1, 4, 4, 4, 3)]
    assert look("GridSample", volume, opset=20, target="amd64-cpuv3-linux-glibc236-ort132").ok
    assert not look("GridSample", volume, opset=20, target="arm64-sm87-dos6010-cu114-trt86").ok
    assert look("GridSample", volume, opset=20, target="trt86").target.startswith("trt86 (tensorrt 8.6")


def test_a_constant_that_has_to_be_folded_is_a_constant(tmp_path):
    """Axes that are Shape arithmetic on known extents: a parser folds them, so they are no objection."""
    from onnx import TensorProto, helper, save

    from ytk_client.inspection import Request, inspect_file

    def model(open_axis: bool):
        nodes = [
            helper.make_node("Constant", [], ["one"], value_int=1),
            helper.make_node("Shape", ["x"], ["dims"]),
            helper.make_node("Gather", ["dims", "zero"], ["extent"]),
            helper.make_node("Sub", ["extent", "one"], ["axis"]),
            helper.make_node("CumSum", ["x", "axis"], ["y"], name="sum"),
        ]
        shape = ["n", 3] if open_axis else [2, 3]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            initializer=[helper.make_tensor("zero", TensorProto.INT64, [], [0])],
        )
        path = tmp_path / f"{open_axis}.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
        return inspect_file(path, Request.of())

    assert of_kind(model(open_axis=False), "refuse") == []
    assert of_kind(model(open_axis=True), "refuse")[0].rule_id == "CumSum.axis"


def test_module_path_and_line_come_from_the_exporters_records(look):
    metadata = {
        "pkg.torch.onnx.name_scopes": "['', 'head', 'head.pool', 'mean']",
        "pkg.torch.onnx.stack_trace": 'File "/venv/site-packages/torch/nn/x.py", line 3, in forward\n'
        'File "model.py", line 12, in forward\nFile "/venv/lib/site-packages/torch/y.py", line 9, in f',
    }
    finding = of_kind(look("ReduceMax", [IMAGE, AXES], opset=18, metadata=metadata), "misparse")[0]
    assert (finding.module_path, finding.source_line) == ("head.pool", "model.py:12")
    assert (
        of_kind(look("ReduceMax", [IMAGE, AXES], opset=18, name="/body/block.1/ReduceMax"), "misparse")[0].module_path
        == "body.block.1"
    )
    hostile = {"pkg.torch.onnx.name_scopes": "__import__('os').system('x')"}
    assert of_kind(look("ReduceMax", [IMAGE, AXES], opset=18, metadata=hostile), "misparse")[0].module_path == ""
    own = {"ytk.module_path": "neck"} | metadata
    assert of_kind(look("ReduceMax", [IMAGE, AXES], opset=18, metadata=own), "misparse")[0].module_path == "neck"


def test_custom_nodes(look):
    named = {"plugin_namespace": "acme", "plugin_version": "1"}
    assert of_kind(look("Special", domain="acme", **named), "needs-plugin")[0].severity is Severity.NOTE
    assert look("Special", domain="acme", **named).ok
    ours = look("RotatedNms", domain="ytk_catalogue", **named | {"plugin_namespace": "ytk_catalogue"})
    assert "compile` builds it" in of_kind(ours, "needs-plugin")[0].fix
    assert of_kind(look("Special", domain="acme"), "custom-domain")[0].fix
    clash = of_kind(look("Resize", domain="acme", **named), "builtin-name")[0]
    assert "silently" in clash.message
    assert of_kind(look("TRT_Mine", domain="acme", **named), "builtin-name")
    assert not of_kind(look("Resize", domain="acme", target="openvino", **named), "builtin-name")
    other = named | {"plugin_namespace": "emca"}
    assert of_kind(look("Special", domain="acme", **other), "namespace")
    assert of_kind(look("Special", [(1,) * 9], domain="acme", **named), "rank")


def test_opset(look):
    newer = of_kind(look("ReduceMax", [IMAGE, AXES], opset=18), "opset")[0]
    assert "ReduceMax-18 (1)" in newer.message
    assert newer.severity is Severity.WARNING
    same = of_kind(look("Relu", opset=18), "opset")[0]
    assert same.severity is Severity.NOTE
    assert "none of its operators changed" in same.message
    assert not of_kind(look("Relu", opset=17), "opset")
    measured = of_kind(look("Resize", [IMAGE, None, SCALES], opset=19, target="onnxruntime"), "opset")[0]
    assert measured.severity is Severity.NOTE
    assert "Resize-19 (1)" in measured.message


def test_dynamic_shapes(look):
    open_batch = of_kind(look("Relu", [("n", 3)]), "dynamic-shape")[0]
    assert open_batch.severity is Severity.WARNING
    assert "axis 0 (n)" in open_batch.message
    assert of_kind(look("Relu", [("n", 3)], target="onnxruntime"), "dynamic-shape")[0].severity is Severity.NOTE
    assert look("Relu").findings == ()


PAIRS = {
    "a pair": (["q x", "d q"], 0),
    "a pair with a reshape between": (["q x", "r q", "d r"], 0),
    "a quantize alone": (["q x", "r q", "s r"], 1),
    "a dequantize alone": (["s x", "c s", "d c"], 1),
    "one reader too many": (["q x", "d q", "s q"], 1),
}


@pytest.mark.parametrize("case", PAIRS)
def test_half_of_a_quantize_pair_is_found(tmp_path, case):
    from onnx import TensorProto, helper, save

    from ytk_client.inspection import Request, inspect_file

    makers = {
        "q": lambda source, out: helper.make_node("QuantizeLinear", [source, "scale", "zero"], [out]),
        "d": lambda source, out: helper.make_node("DequantizeLinear", [source, "scale", "zero"], [out]),
        "r": lambda source, out: helper.make_node("Reshape", [source, "shape"], [out]),
        "s": lambda source, out: helper.make_node("Sign", [source], [out]),
        "c": lambda source, out: helper.make_node("Cast", [source], [out], to=TensorProto.INT8),
    }
    steps, count = PAIRS[case]
    nodes = [makers[step[0]](step[2], step[0]) for step in steps]
    used = {step[2] for step in steps}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info(step[0], TensorProto.FLOAT, None) for step in steps if step[0] not in used],
        initializer=[
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("zero", TensorProto.INT8, [], [0]),
            helper.make_tensor("shape", I64, [2], [2, 2]),
        ],
    )
    path = tmp_path / "m.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    assert len(of_kind(inspect_file(path, Request.of()), "quantize-pair")) == count
    assert of_kind(inspect_file(path, Request.of("onnxruntime")), "quantize-pair") == []


def test_what_could_not_be_judged_is_said(tmp_path):
    """After a custom node nothing is known about ranks; that is not approval."""
    from onnx import TensorProto, helper, save

    from ytk_client.inspection import Request, inspect_file

    named = {"plugin_namespace": "acme", "plugin_version": "1"}
    nodes = [
        helper.make_node("Special", ["x"], ["t"], domain="acme", name="special", **named),
        helper.make_node("Relu", ["t"], ["y"], name="after"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, IMAGE) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    path = tmp_path / "m.onnx"
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    save(helper.make_model(graph, opset_imports=imports), str(path))
    finding = of_kind(inspect_file(path, Request.of()), "unknown-rank")[0]
    assert (finding.node, finding.severity) == ("after", Severity.NOTE)
    assert "1 of 2 nodes" in finding.message


@pytest.mark.parametrize("op", ["If", "Loop"])
def test_subgraphs_are_looked_into(tmp_path, op):
    from onnx import TensorProto, helper, save

    from ytk_client.inspection import Request, inspect_file

    inner = helper.make_graph(
        [helper.make_node("ReduceMax", ["x", "axes"], ["r"], name="inside")],
        "inner",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    if op == "If":
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    else:
        body = helper.make_graph(
            [
                helper.make_node("ReduceMax", ["x", "axes"], ["r"], name="inside"),
                helper.make_node("Identity", ["go"], ["on"]),
            ],
            "body",
            [helper.make_tensor_value_info("i", I64, []), helper.make_tensor_value_info("go", BOOL, [])],
            [
                helper.make_tensor_value_info("on", BOOL, []),
                helper.make_tensor_value_info("r", TensorProto.FLOAT, None),
            ],
        )
        node = helper.make_node("Loop", ["n", "c"], ["y"], body=body)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE), helper.make_tensor_value_info("c", BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializer=[helper.make_tensor("axes", I64, [1], [1]), helper.make_tensor("n", I64, [], [2])],
    )
    path = tmp_path / "m.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), str(path))
    found = of_kind(inspect_file(path, Request.of()), "misparse")
    assert {finding.node for finding in found} == {"inside"}


def test_functions_are_looked_into_and_may_not_explode(tmp_path):
    from onnx import TensorProto, helper, save

    from ytk_client.inspection import Request, inspect_file
    from ytk_core.errors import FormatError

    def model(name, bodies):
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
        functions = [
            helper.make_function("mine", label, ["a"], ["b"], nodes, imports) for label, nodes in bodies.items()
        ]
        graph = helper.make_graph(
            [helper.make_node("F0", ["x"], ["y"], domain="mine", name="call")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        )
        path = tmp_path / name
        save(helper.make_model(graph, opset_imports=imports, functions=functions), str(path))
        return path

    reduce = [
        helper.make_node("Constant", [], ["axes"], value_ints=[1]),
        helper.make_node("ReduceMax", ["a", "axes"], ["b"]),
    ]
    assert of_kind(inspect_file(model("f.onnx", {"F0": reduce}), Request.of()), "misparse")
    # Twenty-five levels of "call the next one twice": 2^25 nodes from a kilobyte.
    laughs = {
        f"F{i}": [
            helper.make_node(f"F{i + 1}", ["a"], ["t"], domain="mine"),
            helper.make_node(f"F{i + 1}", ["t"], ["b"], domain="mine"),
        ]
        for i in range(25)
    } | {"F25": [helper.make_node("Relu", ["a"], ["b"])]}
    with pytest.raises(FormatError, match="nodes, more than"):
        inspect_file(model("l.onnx", laughs), Request.of())
    with pytest.raises(FormatError, match="call themselves"):
        inspect_file(model("r.onnx", {"F0": [helper.make_node("F0", ["a"], ["b"], domain="mine")]}), Request.of())


def test_a_plugin_of_the_empty_namespace_is_in_order(look):
    attributes = {"plugin_namespace": "", "plugin_version": "1"}
    assert of_kind(look("Own", domain="ytk.unnamed", **attributes), "namespace") == []
    assert of_kind(look("Own", domain="yasp", **attributes), "namespace") != []


def test_an_empty_name_of_a_target_is_refused():
    with pytest.raises(UserError, match="no target profile ''"):
        Request.of("")
