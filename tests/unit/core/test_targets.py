"""Target profiles: the shipped data against ONNX's own schemas, and every executable rule once for and once against."""

import json
from importlib.resources import files

import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.errors import FormatError, UserError
from ytk_core.targets import DEFAULT_PROFILE, NodeFacts, load_profile, profile_names
from ytk_core.targets.nodes import CONDITIONS
from ytk_core.targets.profiles import Kind, parse_profiles

TEXT = (files("ytk_core.targets") / "target_profiles.json").read_bytes()
REDUCE9 = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"]
F32 = ["float32"] * 8


def node(op, opset=17, ranks=(4,), dtypes=None, outputs=("float32",), constants=None, absent=(), **attributes):
    return NodeFacts(
        op_type=op,
        opset=opset,
        input_ranks=ranks,
        input_dtypes=dtypes or F32[: len(ranks)],
        output_dtypes=outputs,
        attributes=attributes,
        constant_inputs=constants or {},
        absent_inputs=frozenset(absent),
    )


def verdict(facts, profile=DEFAULT_PROFILE):
    found = load_profile(profile).check(facts)
    assert found.ok == (found.kind == "")
    assert found.ok or (found.rule and found.source and found.rule_id)
    return found.kind


def test_the_default_is_the_strictest_tensorrt():
    profile = load_profile()
    assert (profile.name, profile.opset, profile.max_rank) == ("trt86", 17, 8)
    assert profile_names() == ["trt86", "trt101", "trt1015", "openvino", "onnxruntime", "xnnpack"]


ARCHES = [
    ("arm64-sm87-dos6010-cu114-trt86", "trt86"),
    ("arm64-sm87-jp6-cu126-trt100", "trt86"),
    ("amd64-sm90-linux-cu130-trt101", "trt101"),
    ("amd64-sm90-linux-cu130-trt1014", "trt101"),
    ("amd64-sm90-linux-cu130-trt1015", "trt1015"),
    ("amd64-sm120-linux-cu130-trt114", "trt1015"),
    ("amd64-cpuv4-linux-glibc236-ov20264", "openvino"),
    ("amd64-cpuv4-linux-glibc236-ov20252", "openvino"),
    ("amd64-cpuv4-linux-glibc236-ort132", "onnxruntime"),
]


@pytest.mark.parametrize(("arch", "name"), ARCHES)
def test_an_arch_spec_takes_the_newest_profile_that_is_not_newer(arch, name):
    assert load_profile(arch).name == load_profile(ArchSpec.parse(arch)).name == name


@pytest.mark.parametrize("bad", ["trt85", "arm64-sm87-linux-cu102-trt82", "amd64-sm87"])
def test_no_profile(bad):
    with pytest.raises(UserError) as caught:
        load_profile(bad)
    assert caught.value.hint


def test_the_data_agrees_with_onnx():
    """The whole of opset 18 is in the table, names and first versions are ONNX's."""
    from onnx import defs

    schemas = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas.setdefault(schema.name, []).append(schema)
    ops = {name: entry for (domain, name), entry in load_profile().ops.items() if domain == ""}
    standard18 = set()
    for name, versions in schemas.items():
        usable = [s for s in versions if s.since_version <= 18]
        if usable and not max(usable, key=lambda s: s.since_version).deprecated:
            standard18.add(name)
    assert standard18 <= set(ops)
    for name, entry in ops.items():
        if entry.since is not None and name in schemas and name in standard18:
            assert entry.since == min(s.since_version for s in schemas[name]), name
    missing = {p: sorted(n for n in standard18 if p not in ops[n].dtypes) for p in ("trt86", "trt1015")}
    assert (len(missing["trt86"]), len(missing["trt1015"])) == (44, 37)
    assert {"Col2Im", "DFT", "Det", "Compress", "MaxUnpool", "Unique", "BitwiseAnd"} <= set(missing["trt86"])


def test_every_restriction_of_the_default_profile_is_a_rule_or_a_note():
    rules = [rule for entry in load_profile().ops.values() for rule in entry.rules]
    assert len(rules) > 100
    executable = [rule for rule in rules if rule.kind is not Kind.NOTE]
    assert len(executable) > 80
    assert all(rule.source for rule in rules)
    assert load_profile().notes_of("If")[0].text.startswith("both branches")
    used = {name for rule in rules for condition in rule.when for name in condition}
    assert used == set(CONDITIONS)


GOOD_AND_BAD = [
    # (id, profile, accepted node, refused node, kind)
    ("AveragePool.rank", "trt86", node("AveragePool"), node("AveragePool", ranks=(6,)), "rank"),
    ("AveragePool.dilations", "trt86", node("AveragePool", dilations=[1, 1]), node("AveragePool", 19, dilations=[2, 1]), "misparse"),
    ("AveragePool.dilations-refused", "trt101", node("AveragePool", dilations=[1]), node("AveragePool", 19, dilations=[2, 2]), "refuse"),
    ("MaxPool.rank", "trt86", node("MaxPool", ranks=(3,)), node("MaxPool", ranks=(2,)), "rank"),
    ("MaxPool.indices", "trt86", node("MaxPool"), node("MaxPool", outputs=("float32", "int64")), "refuse"),
    ("MaxPool.dilations", "trt86", node("MaxPool", dilations=[1, 1]), node("MaxPool", dilations=[2, 2]), "misparse"),
    ("LpPool.dilations", "trt86", node("LpPool", p=1), node("LpPool", 18, dilations=[1, 2]), "misparse"),
    ("LpPool.p", "trt86", node("LpPool"), node("LpPool", p=3), "refuse"),
    ("Conv.rank", "trt86", node("Conv", ranks=(5, 5)), node("Conv", ranks=(6, 6)), "rank"),
    ("ConvTranspose.rank", "trt86", node("ConvTranspose", ranks=(3, 3)), node("ConvTranspose", ranks=(2, 2)), "rank"),
    ("CumSum.axis", "trt86", node("CumSum", ranks=(2, 0), dtypes=["float32", "int64"], constants={1: 1}), node("CumSum", ranks=(2, 0), dtypes=["float32", "int64"]), "refuse"),
    ("DepthToSpace.rank", "trt86", node("DepthToSpace"), node("DepthToSpace", ranks=(5,)), "rank"),
    ("SpaceToDepth.rank", "trt86", node("SpaceToDepth"), node("SpaceToDepth", ranks=(3,)), "rank"),
    ("DequantizeLinear.zero-point", "trt86", node("DequantizeLinear", ranks=(4, 0, 0), dtypes=["int8", "float32", "int8"], constants={2: 0}), node("DequantizeLinear", ranks=(4, 0, 0), dtypes=["int8", "float32", "int8"], constants={2: [0, 3]}), "refuse"),
    ("DequantizeLinear.uint8", "trt86", node("DequantizeLinear", ranks=(4, 0), dtypes=["int8", "float32"]), node("DequantizeLinear", ranks=(4, 0), dtypes=["uint8", "float32"]), "dtype"),
    ("QuantizeLinear.scale", "trt86", node("QuantizeLinear", ranks=(4, 0), constants={1: 0.5}, outputs=("int8",)), node("QuantizeLinear", ranks=(4, 0), outputs=("int8",)), "refuse"),
    ("QuantizeLinear.zero-point", "trt86", node("QuantizeLinear", ranks=(4, 0, 0), dtypes=["float32", "float32", "int8"], constants={1: 1.0, 2: 0}), node("QuantizeLinear", ranks=(4, 0, 0), dtypes=["float32", "float32", "int8"], constants={1: 1.0, 2: 9}), "refuse"),
    ("Dropout.training", "trt86", node("Dropout", ranks=(4, 0, 0), dtypes=["float32", "float32", "bool"], constants={1: 0.5, 2: False}), node("Dropout", ranks=(4, 0, 0), dtypes=["float32", "float32", "bool"], constants={1: 0.5, 2: True}), "refuse"),
    ("Dropout.training-dynamic", "trt86", node("Dropout", ranks=(4,)), node("Dropout", ranks=(4, 0, 0), dtypes=["float32", "float32", "bool"]), "refuse"),
    ("BatchNormalization.training", "trt86", node("BatchNormalization", ranks=(4, 1, 1, 1, 1), training_mode=0), node("BatchNormalization", ranks=(4, 1, 1, 1, 1), training_mode=1), "refuse"),
    ("Attention.present-key", "trt1015", node("Attention", 23, ranks=(4, 4, 4)), node("Attention", 23, ranks=(4, 4, 4), outputs=F32[:2]), "refuse"),
    ("Attention.softcap", "trt1015", node("Attention", 23, ranks=(4, 4, 4), softcap=0.0), node("Attention", 23, ranks=(4, 4, 4), softcap=2.0), "refuse"),
    ("Attention.softmax-precision", "trt1015", node("Attention", 23, ranks=(4, 4, 4)), node("Attention", 23, ranks=(4, 4, 4), softmax_precision=1), "refuse"),
    ("Einsum.ellipsis", "trt86", node("Einsum", ranks=(2, 2), equation="ij,jk->ik"), node("Einsum", ranks=(2, 2), equation=b"...ij,jk->...ik"), "refuse"),
    ("EyeLike.rank", "trt86", node("EyeLike", ranks=(2,)), node("EyeLike", ranks=(3,)), "rank"),
    ("Gemm.rank", "trt86", node("Gemm", ranks=(2, 2)), node("Gemm", ranks=(3, 2)), "rank"),
    ("Gemm.rank-b", "trt86", node("Gemm", ranks=(2, 2)), node("Gemm", ranks=(2, 3)), "rank"),
    ("GridSample.rank", "trt86", node("GridSample", ranks=(4, 4)), node("GridSample", ranks=(5, 5)), "rank"),
    ("GridSample.rank", "trt1015", node("GridSample", 22, ranks=(4, 4), mode="linear"), node("GridSample", 22, ranks=(5, 5)), "rank"),
    ("GridSample.rank-grid", "trt86", node("GridSample", ranks=(None, 4)), node("GridSample", ranks=(None, 5)), "rank"),
    ("GridSample.mode-names", "trt86", node("GridSample", 16, ranks=(4, 4), mode="bilinear"), node("GridSample", 20, ranks=(4, 4), mode="linear"), "misparse"),
    ("LSTM.layout", "trt86", node("LSTM", ranks=(3, 3, 3), layout=0), node("LSTM", ranks=(3, 3, 3), layout=1), "refuse"),
    ("LSTM.input-forget", "trt86", node("LSTM", ranks=(3, 3, 3)), node("LSTM", ranks=(3, 3, 3), input_forget=1), "refuse"),
    ("LayerNormalization.outputs", "trt86", node("LayerNormalization", ranks=(3, 1)), node("LayerNormalization", ranks=(3, 1), outputs=("float32", "float32")), "refuse"),
    ("Mod.fmod", "trt86", node("Mod", ranks=(2, 2), dtypes=["int32", "int32"]), node("Mod", ranks=(2, 2), fmod=0), "dtype"),
    ("NonMaxSuppression.rank-scores", "trt86", node("NonMaxSuppression", ranks=(3, 3)), node("NonMaxSuppression", ranks=(3, 2)), "rank"),
    ("OneHot.depth", "trt101", node("OneHot", ranks=(1, 0, 1), dtypes=["int64", "int64", "float32"], constants={1: 4}), node("OneHot", ranks=(1, 0, 1), dtypes=["int64", "int64", "float32"]), "refuse"),
    ("Pad.axes", "trt101", node("Pad", 18, ranks=(4, 1, 0, 1), dtypes=["float32", "int64", "float32", "int64"], constants={3: [2]}), node("Pad", 18, ranks=(4, 1, 0, 1), dtypes=["float32", "int64", "float32", "int64"]), "refuse"),
    ("Pad.axes-86", "trt86", node("Pad", ranks=(4, 1), dtypes=["float32", "int64"]), node("Pad", 18, ranks=(4, 1, None, 1), dtypes=["float32", "int64", None, "int64"], constants={3: [2]}, absent=[2]), "misparse"),
    ("Pad.mode-wrap", "trt86", node("Pad", ranks=(4, 1), dtypes=["float32", "int64"], mode="reflect"), node("Pad", 19, ranks=(4, 1), dtypes=["float32", "int64"], mode="wrap"), "refuse"),
    ("ReduceSum.axes-constant", "trt86", node("ReduceSum", 18, ranks=(4, 1), dtypes=["float32", "int64"], constants={1: [1]}), node("ReduceSum", 18, ranks=(4, 1), dtypes=["float32", "int64"]), "refuse"),
    ("Resize.antialias", "trt86", node("Resize", 18, mode="linear"), node("Resize", 18, mode="linear", antialias=1), "misparse"),
    ("Resize.antialias-refused", "trt1015", node("Resize", 18, mode="linear", antialias=0), node("Resize", 18, mode="linear", antialias=1), "refuse"),
    ("Resize.mode", "trt86", node("Resize", mode="nearest"), node("Resize", mode="cubic"), "refuse"),
    ("Resize.coordinate-mode", "trt86", node("Resize", coordinate_transformation_mode="asymmetric"), node("Resize", coordinate_transformation_mode="half_pixel_symmetric"), "refuse"),
    ("Resize.coordinate-mode", "trt101", node("Resize"), node("Resize", coordinate_transformation_mode="tf_crop_and_resize"), "refuse"),
    ("Resize.aspect-ratio", "trt86", node("Resize", keep_aspect_ratio_policy="stretch"), node("Resize", 18, keep_aspect_ratio_policy="not_larger"), "refuse"),
    ("Resize.axes-86", "trt86", node("Resize"), node("Resize", 18, axes=[2, 3]), "misparse"),
    ("Resize.axes", "trt101", node("Resize", 18, axes=[0, 1, -2, -1]), node("Resize", 18, axes=[2, 3]), "refuse"),
    ("ScatterElements.reduction", "trt86", node("ScatterElements", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="none"), node("ScatterElements", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="add"), "misparse"),
    ("ScatterElements.reduction-plugin", "trt101", node("ScatterElements", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"]), node("ScatterElements", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="max"), "refuse"),
    ("ScatterND.reduction", "trt86", node("ScatterND", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"]), node("ScatterND", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="mul"), "misparse"),
    ("ScatterND.reduction-present", "trt101", node("ScatterND", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"]), node("ScatterND", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="none"), "refuse"),
    ("ScatterND.reduction-refused", "trt1015", node("ScatterND", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="none"), node("ScatterND", ranks=(2, 2, 2), dtypes=["float32", "int64", "float32"], reduction="add"), "refuse"),
    ("Slice.axes", "trt101", node("Slice", ranks=(2, 1, 1, 1), dtypes=["float32", "int64", "int64", "int64"], constants={3: [0]}), node("Slice", ranks=(2, 1, 1, 1), dtypes=["float32", "int64", "int64", "int64"]), "refuse"),
    ("Split.num-outputs", "trt86", node("Split", ranks=(2, 1), dtypes=["float32", "int64"], constants={1: [2, 2]}), node("Split", 18, ranks=(2,), num_outputs=2), "misparse"),
    ("Squeeze.axes", "trt86", node("Squeeze", ranks=(3, 1), dtypes=["float32", "int64"], constants={1: [0]}), node("Squeeze", ranks=(3, 1), dtypes=["float32", "int64"]), "refuse"),
    ("Unsqueeze.axes", "trt86", node("Unsqueeze", ranks=(3, 1), dtypes=["float32", "int64"], constants={1: [0]}), node("Unsqueeze", ranks=(3, 1), dtypes=["float32", "int64"]), "refuse"),
    ("TopK.sorted", "trt101", node("TopK", ranks=(2, 1), dtypes=["float32", "int64"], constants={1: [5]}), node("TopK", ranks=(2, 1), dtypes=["float32", "int64"], constants={1: [5]}, sorted=0), "refuse"),
    ("TopK.k", "trt86", node("TopK", ranks=(2, 1), dtypes=["float32", "int64"], constants={1: [3839]}), node("TopK", ranks=(2, 1), dtypes=["float32", "int64"], constants={1: [3840]}), "refuse"),
    *((f"Reduce{r}.axes-input", "trt86", node(f"Reduce{r}", axes=[1]), node(f"Reduce{r}", 18, ranks=(4, 1), dtypes=["float32", "int64"], constants={1: [1]}), "misparse") for r in REDUCE9),
    *((f"Reduce{r}.noop", "trt86", node(f"Reduce{r}", 18), node(f"Reduce{r}", 18, noop_with_empty_axes=1), "misparse") for r in REDUCE9),
    *((f"Reduce{r}.axes-constant", "trt101", node(f"Reduce{r}", 18, ranks=(4, 1), dtypes=["float32", "int64"], constants={1: [1]}), node(f"Reduce{r}", 18, ranks=(4, 1), dtypes=["float32", "int64"]), "refuse") for r in REDUCE9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "profile", "good", "bad", "kind"), GOOD_AND_BAD, ids=[f"{r[1]}-{r[0]}" for r in GOOD_AND_BAD]
)
def test_a_rule_fires_where_it_should_and_not_where_it_should_not(rule, profile, good, bad, kind):
    checks = load_profile(profile)
    assert checks.check_all(good) == ()
    found = checks.check(bad)
    assert (found.rule_id, found.kind) == (rule, kind)


def test_every_executable_tensorrt_rule_has_a_case_above():
    rules = {
        r.id
        for e in load_profile().ops.values()
        for r in e.rules
        if r.kind is not Kind.NOTE and not r.id.startswith("aten.")
    }
    siblings = {
        "MaxPool.dilations-refused",
        "LpPool.dilations-refused",
        "NonMaxSuppression.rank",
        "LayerNormalization.outputs-2",
        "Attention.present-value",
        "Attention.qk-output",
    }
    assert rules - {case[0] for case in GOOD_AND_BAD} == siblings


def test_the_two_demo_operators_are_refused_on_every_tensorrt_profile():
    for profile in ("trt86", "trt101", "trt1015"):
        assert (
            verdict(node("Col2Im", 18, ranks=(3, 1, 1), dtypes=["float32", "int64", "int64"]), profile) == "missing-op"
        )
        assert verdict(node("GridSample", ranks=(5, 5)), profile) == "rank"
    for profile in ("openvino", "onnxruntime"):
        assert verdict(node("Col2Im", 18, ranks=(3, 1, 1), dtypes=["float32", "int64", "int64"]), profile) == ""


def test_ranks_and_dtypes_in_general():
    assert verdict(node("Add", ranks=(8, 8))) == ""
    assert verdict(node("Add", ranks=(9, 1))) == "rank"
    assert verdict(node("Add", ranks=(9, 1)), "openvino") == ""
    assert verdict(node("Add", ranks=(None, None), dtypes=[None, None])) == ""
    # int64 and float64 are narrowed, which a profile says, and bfloat16 does not exist on 8.6.
    assert verdict(node("Add", ranks=(1, 1), dtypes=["int64", "int64"], outputs=("int64",))) == ""
    assert verdict(node("Add", ranks=(1, 1), dtypes=["float64", "float64"])) == ""
    assert load_profile().narrowed == {"float64": "float32", "int64": "int32"}
    assert verdict(node("Add", ranks=(1, 1), dtypes=["bfloat16", "bfloat16"])) == "dtype"
    assert verdict(node("Add", ranks=(1, 1), dtypes=["bfloat16", "bfloat16"]), "trt101") == ""
    for dtype in ("int16", "uint32", "complex64", "string", "int8", "uint8"):
        assert verdict(node("Add", ranks=(1, 1), dtypes=[dtype, dtype])) == "dtype"
    assert verdict(node("Cast", dtypes=["uint8"], outputs=("float32",))) == ""
    assert verdict(node("Cast", dtypes=["float32"], outputs=("int16",))) == "dtype"
    assert verdict(node("Softmax", dtypes=["int64"])) == "dtype"
    assert verdict(node("Add", ranks=(1, 1), dtypes=["bool", "bool"])) == "dtype"
    # Condition and indices are not what the list of element types is about.
    assert verdict(node("Where", ranks=(1, 1, 1), dtypes=["bool", "float32", "float32"])) == ""
    assert verdict(node("Gather", ranks=(2, 1), dtypes=["float32", "int64"])) == ""
    assert verdict(node("ConstantOfShape", ranks=(1,), dtypes=["int64"], outputs=("float32",))) == ""
    assert verdict(node("Softmax", dtypes=["bfloat16"]), "onnxruntime") == "dtype"
    assert verdict(node("Softmax", dtypes=["float16"]), "onnxruntime") == ""


def test_other_domains_and_the_order_of_objections():
    profile = load_profile()
    assert profile.check(NodeFacts(op_type="Fold", domain="yasp", opset=1)).kind == "missing-op"
    assert profile.check(NodeFacts(op_type="Relu", domain="ai.onnx", opset=17)).ok
    assert load_profile("onnxruntime").check(NodeFacts(op_type="FusedConv", domain="com.microsoft", opset=1)).ok
    worst = node("GridSample", 20, ranks=(9, 5), dtypes=["int8", "float32"], mode="cubic")
    assert [v.kind for v in profile.check_all(worst)] == ["misparse", "rank", "rank", "rank", "dtype", "dtype"]


def test_xnnpack_in_the_same_form():
    def aten(op, rank, dtypes, **attributes):
        return NodeFacts(
            op_type=op, domain="aten", opset=0, input_ranks=(rank,), input_dtypes=dtypes, attributes=attributes
        )

    profile = load_profile("xnnpack")
    assert profile.check(aten("aten.convolution.default", 4, ["float32"])).ok
    assert profile.check(aten("aten.convolution.default", 5, ["float32"])).kind == "rank"
    assert profile.check(aten("aten.permute_copy.default", 7, ["float32"])).kind == "rank"
    assert profile.check(aten("aten.add.Tensor", 4, ["float32", "float16"])).rule_id == "mixed-dtypes"
    assert profile.check(aten("aten.mean.dim", 4, ["float32"], keepdim=1)).ok
    assert profile.check(aten("aten.mean.dim", 4, ["float32"])).kind == "refuse"
    assert profile.check(aten("aten.add.Tensor", 4, ["int64"])).kind == "dtype"


def test_built_in_names():
    profile = load_profile()
    assert {"GridSample", "Scatter", "ImageScaler"} <= profile.builtin_ops
    assert profile.is_builtin("TRT_Scale")
    for name in ("Col2im", "GridSampler", "Col2Im", "trt_scale", ""):
        assert not profile.is_builtin(name)
    assert not load_profile("openvino").is_builtin("TRT_Scale")


@pytest.mark.parametrize("name", [n for n in profile_names() if n != "xnnpack"])
def test_ordinary_nodes_are_accepted_everywhere(name):
    for op in ("Add", "MatMul", "Conv", "Relu", "Softmax", "Concat", "Reshape", "Transpose"):
        assert verdict(node(op, ranks=(4, 4)), name) == "", op


EDITS = [
    (
        "unknown condition",
        lambda d: d["ops"][_op(d, "Split")]["rules"][0].update(when=[{"moon": "full"}]),
        "unknown conditions ['moon']",
    ),
    ("rule without source", lambda d: d["ops"][_op(d, "Split")]["rules"][0].update(source=""), "Split.num-outputs"),
    ("rule of no profile", lambda d: d["ops"][_op(d, "Split")]["rules"][0].update(profiles=["trt99"]), "trt99"),
    ("rule without condition", lambda d: d["ops"][_op(d, "Split")]["rules"][0].update(when=[]), "Split.num-outputs"),
    ("unknown kind", lambda d: d["ops"][_op(d, "Split")]["rules"][0].update(kind="maybe"), "kind"),
    ("op of no profile", lambda d: d["ops"][0]["dtypes"].update(trt99=None), "trt99"),
    ("duplicate op", lambda d: d["ops"].append(d["ops"][0]), "occurs twice"),
    (
        "duplicate rule",
        lambda d: d["ops"][_op(d, "Conv")]["rules"].append(d["ops"][_op(d, "Conv")]["rules"][0]),
        "the id occurs twice",
    ),
    ("unknown default", lambda d: d.update(default="trt99"), "$.default"),
    ("unknown key", lambda d: d["profiles"]["trt86"].update(colour="red"), "colour"),
    ("schema", lambda d: d.update(schema_version=2), "schema_version is 2"),
]


def _op(document, name):
    return next(i for i, entry in enumerate(document["ops"]) if entry["op"] == name)


@pytest.mark.parametrize(("edit", "place"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS])
def test_a_damaged_document_is_refused(edit, place):
    document = json.loads(TEXT)
    edit(document)
    with pytest.raises(FormatError) as caught:
        parse_profiles(json.dumps(document).encode(), "profiles.json")
    assert caught.value.message.startswith("profiles.json: ")
    assert place in caught.value.message


def test_no_heavy_import():
    import subprocess
    import sys

    script = "import sys, ytk_core.targets as t; t.load_profile(); assert not {'onnx', 'torch', 'openvino'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
