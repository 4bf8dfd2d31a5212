"""What to do about an objection of a target profile."""

from __future__ import annotations

from ytk_client.inspection.onnx_read import Node
from ytk_core.targets import TargetProfile, Verdict

# By rule id; `*` stands for the operator. What is not here gets the fix of its kind.
_BY_RULE: dict[str, str] = {
    "*.axes-input": "Write axes as an attribute (the opset-17 form), or export with `ytk embedded prepare`, which lowers it.",
    "*.noop": "Drop the node: with noop_with_empty_axes and no axes it is an Identity.",
    "Pad.axes-86": "Give pads for every axis (the opset-17 form); `ytk embedded prepare` does.",
    "Resize.axes-86": "Give scales or sizes for every axis (the opset-17 form); `ytk embedded prepare` does.",
    "Resize.axes": "Give scales or sizes for every axis.",
    "Resize.antialias": "Set antialias=False in the model, or carve the resize with `ytk embedded prepare`.",
    "Split.num-outputs": "Give the split sizes as the second input; `ytk embedded prepare` does.",
    "GridSample.mode-names": "Write mode as bilinear or bicubic (the opset-16 names); `ytk embedded prepare` does.",
    "ScatterND.reduction": "Carve it with `ytk embedded prepare`, or write it without reduction (one-hot and matmul, or a sum).",
    "ScatterElements.reduction": "Carve it with `ytk embedded prepare`, or write it without reduction (one-hot and matmul).",
    "ScatterND.reduction-present": "Remove the reduction attribute: it is none.",
    "ScatterElements.reduction-plugin": "Build the engine with the ScatterElements plugin library, or carve the node.",
    "AveragePool.dilations": "Rewrite it as a depthwise convolution with dilations, or carve it.",
    "MaxPool.dilations": "Rewrite it as strided slices and pools, or carve it.",
    "LpPool.dilations": "Rewrite it as power, depthwise convolution and root, or carve it.",
    "max-rank": "Merge axes before the operator: `ytk embedded prepare` splits such permutes into two of lower rank.",
    "GridSample.rank": "Carve it with `ytk embedded prepare`: no TensorRT before 11.2 samples volumes.",
    "GridSample.rank-grid": "Carve it with `ytk embedded prepare`: no TensorRT before 11.2 samples volumes.",
    "Dropout.training": "Export the model in eval mode (`model.eval()`).",
    "Dropout.training-dynamic": "Export the model in eval mode (`model.eval()`).",
    "DequantizeLinear.uint8": "Quantize symmetrically to int8.",
    "DequantizeLinear.zero-point": "Quantize symmetrically (zero point 0).",
    "QuantizeLinear.zero-point": "Quantize symmetrically (zero point 0).",
    "dtypes": "Cast to an element type of the target before the operator, or export the model in float32.",
    "mixed-dtypes": "Cast the inputs to one element type.",
}
_BY_KIND: dict[str, str] = {
    "missing-op": "Carve it into a plugin with `ytk embedded prepare`, or write it with other operators.",
    "misparse": "Export the model with `ytk embedded prepare`, which rewrites or carves such nodes.",
    "rank": "Reshape to a lower rank around the operator, or carve it with `ytk embedded prepare`.",
    "dtype": "Cast to an element type that the target accepts, or carve it with `ytk embedded prepare`.",
    "refuse": "Write it in the form that the rule asks for, or carve it with `ytk embedded prepare`.",
}
_MICROSOFT = "Export without ONNX Runtime's graph optimiser: its fused operators exist in ONNX Runtime only."
_ML = "Keep classical machine learning (ai.onnx.ml) outside of the engine."


def fix_for(node: Node, verdict: Verdict, profile: TargetProfile) -> str:
    """Give what to do about one objection to a node."""
    domain, op = node.facts.domain, node.facts.op_type
    if domain == "com.microsoft":
        return _MICROSOFT
    if domain.startswith("ai.onnx.ml"):
        return _ML
    word = verdict.rule_id.partition(".")[2]
    for key in (verdict.rule_id, f"*.{word}"):
        if key in _BY_RULE:
            return _BY_RULE[key]
    if (
        verdict.rule_id.endswith("-constant")
        or "must be constant" in verdict.rule
        or "build-time constant" in verdict.rule
    ):
        return "Make the input a constant: export with fixed shapes, or fold constants (onnxsim, onnxscript.optimizer)."
    if verdict.kind == "rank" and profile.engine == "tensorrt" and op == "Gemm":
        return "Use MatMul and Add instead of Gemm, or flatten the inputs to two dims."
    return _BY_KIND[verdict.kind]
