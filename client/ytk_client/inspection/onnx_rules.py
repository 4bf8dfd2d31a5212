"""Hold every node of a model against a target profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ytk_client.inspection.findings import Finding, Severity
from ytk_client.inspection.onnx_fixes import fix_for
from ytk_client.inspection.onnx_read import Model, Node
from ytk_core.input_ranges import METADATA_KEY, InputRange, decode_ranges
from ytk_core.node_contracts import STANDARD_DOMAINS, UNNAMED_DOMAIN
from ytk_core.targets import TargetProfile

PLUGIN_ATTRIBUTE = "plugin_namespace"


def is_custom(node: Node) -> bool:
    """Tell whether a node is no operator of ONNX or of a known extension of it, so that a plugin has to stand for it."""
    return node.facts.domain not in STANDARD_DOMAINS


def node_findings(model: Model, profile: TargetProfile) -> list[Finding]:
    """List the objections of a profile to each node; of several of one kind, the first."""
    found: list[Finding] = []
    for node in model.nodes:
        if is_custom(node):
            continue
        seen: set[str] = set()
        for verdict in profile.check_all(node.facts):
            if verdict.kind in seen:
                continue
            seen.add(verdict.kind)
            found.append(
                _finding(
                    node,
                    kind=verdict.kind,
                    severity=Severity.ERROR,
                    message=verdict.rule,
                    fix=fix_for(node, verdict, profile),
                    rule=verdict.rule,
                    rule_id=verdict.rule_id,
                    source=verdict.source,
                )
            )
    return found


def _finding(node: Node, **fields: Any) -> Finding:
    label = f"{node.facts.domain}::{node.facts.op_type}" if node.facts.domain else node.facts.op_type
    return Finding(node=node.name, op=label, module_path=node.module_path, source_line=node.source_line, **fields)


def custom_findings(model: Model, profile: TargetProfile) -> list[Finding]:
    """Look at the nodes that a plugin has to stand for: names that a built-in takes, and what parsers find plugins by."""
    found: list[Finding] = []
    is_tensorrt = profile.engine == "tensorrt"
    for node in filter(is_custom, model.nodes):
        label = f"{node.facts.domain}::{node.facts.op_type}"
        if is_tensorrt and profile.is_builtin(node.facts.op_type):
            found.append(
                _finding(
                    node,
                    kind="builtin-name",
                    severity=Severity.ERROR,
                    message=f"{node.facts.op_type} is an operator of {profile.name}'s own importer, which wins over a plugin of that name, silently",
                    fix="Rename the operator; `ytk embedded prepare` never gives such a name.",
                    rule="built-in importers win over plugins of the same name",
                    rule_id="builtin-name",
                    source=profile.source,
                )
            )
        named = node.facts.attributes.get(PLUGIN_ATTRIBUTE)
        if named is None:
            text = "carries no plugin_namespace" if is_tensorrt else "is no operator of any standard domain"
            found.append(
                _finding(
                    node,
                    kind="custom-domain",
                    severity=Severity.ERROR,
                    message=f"{label} {text}: {profile.name} finds no plugin for it",
                    fix="Export the model with `ytk embedded prepare`, or set the attributes plugin_namespace and plugin_version.",
                    rule="parsers look plugins up by operator name, plugin_namespace and plugin_version",
                    rule_id="missing-op",
                    source=profile.source,
                )
            )
        elif named != (node.facts.domain if node.facts.domain != UNNAMED_DOMAIN else ""):
            found.append(
                _finding(
                    node,
                    kind="namespace",
                    severity=Severity.ERROR,
                    message=f"its domain is {node.facts.domain!r}, its plugin_namespace {named!r}: old and new parsers look for different plugins",
                    fix="Give both the same value.",
                    rule_id="namespace",
                    source=profile.source,
                )
            )
        if (
            profile.max_rank is not None
            and (high := max((r or 0 for r in node.facts.input_ranks), default=0)) > profile.max_rank
        ):
            found.append(
                _finding(
                    node,
                    kind="rank",
                    severity=Severity.ERROR,
                    message=f"{label} takes a tensor of rank {high}; {profile.name} hands plugins tensors up to rank {profile.max_rank}",
                    fix="Carve a larger region, whose border has lower ranks.",
                    rule_id="max-rank",
                    source=profile.source,
                )
            )
    return found


_KEEPS_QUANTIZED = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Gather", "Concat"}
)


_MAX_DEPTH = 64


def quantize_findings(model: Model, profile: TargetProfile) -> Iterator[Finding]:
    """Find halves of quantize and dequantize pairs: what lies between is int8, which no other operator of TensorRT takes."""
    if profile.engine != "tensorrt":
        return
    producers = {name: node for node in model.nodes for name in node.outputs}

    def origin(name: str, depth: int = 0) -> str:
        node = producers.get(name)
        if node is None:
            return "constant" if name in model.constants else "input"
        if node.facts.op_type in _KEEPS_QUANTIZED and depth < _MAX_DEPTH:
            return origin(node.inputs[0], depth + 1)
        return "constant" if name in model.constants else node.facts.op_type

    def takers(name: str) -> Iterator[str]:
        pending, seen = [name], set[str]()
        while pending:
            current = pending.pop()
            for node, _ in model.consumers.get(current, ()):
                if node.facts.op_type in _KEEPS_QUANTIZED:
                    pending += [each for each in node.outputs if each not in seen]
                    seen.update(node.outputs)
                else:
                    yield node.facts.op_type

    for node in model.nodes:
        if node.facts.domain or node.facts.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
            continue
        if node.facts.op_type == "QuantizeLinear":
            others = sorted(set(takers(node.outputs[0])) - {"DequantizeLinear"})
            text = f"its int8 output goes to {', '.join(others)}, not to a DequantizeLinear" if others else ""
        else:
            source = origin(node.inputs[0])
            text = (
                ""
                if source in {"QuantizeLinear", "constant"}
                else f"its int8 input comes from {source}, not from a QuantizeLinear"
            )
        if text:
            yield _finding(
                node,
                kind="quantize-pair",
                severity=Severity.WARNING,
                message=f"half of a pair: {text}",
                fix="Keep quantize and dequantize round the operator that they belong to; export the model again.",
                rule_id="quantize-pair",
                source="TensorRT's explicit quantization works on pairs; from its developer guide, not measured",
            )


def opset_findings(model: Model, profile: TargetProfile) -> Iterator[Finding]:
    """Name the operators whose definition is newer than what the target's importer is documented for."""
    import onnx

    opset = model.opsets.get("", 0)
    if not profile.opset or opset <= profile.opset:
        return
    newer: dict[tuple[str, int], list[Node]] = defaultdict(list)
    for node in model.nodes:
        if node.facts.domain:
            continue
        try:
            since = onnx.defs.get_schema(node.facts.op_type, opset, "").since_version
        except onnx.defs.SchemaError:
            continue  # no such operator: an objection of its own
        if since > profile.opset:
            newer[node.facts.op_type, since].append(node)
    severity = Severity.WARNING if profile.engine == "tensorrt" and newer else Severity.NOTE
    names = ", ".join(f"{op}-{since} ({len(nodes)})" for (op, since), nodes in sorted(newer.items()))
    if profile.engine == "tensorrt":
        limit = f"{profile.name}'s importer is documented up to {profile.opset}"
        changed = f", and may read these by their older definition: {names}"
        fix = f"Export with `ytk embedded prepare`, which writes opset {profile.opset}, or make sure that nothing new is used."
    else:
        limit = f"{profile.name}'s rules were made with opset {profile.opset}"
        changed = f"; these operators changed since, so a rule may miss something: {names}"
        fix = "Run the model once on this engine (`ytk embedded compile`)."
    yield Finding(
        kind="opset",
        severity=severity,
        message=f"the model is of opset {opset}; {limit}"
        + (changed if newer else "; none of its operators changed since"),
        fix=fix if newer else "Nothing.",
        rule_id="opset",
        source=profile.source,
    )


def dynamic_findings(model: Model, profile: TargetProfile) -> Iterator[Finding]:
    """Name inputs with extents that are open, and say what the target needs for them."""
    dynamic = profile.engine == "tensorrt"
    known = _noted_ranges(model)
    for info in model.proto.graph.input:
        tensor = model.tensors[info.name]
        if info.name in model.initializers or tensor.dims is None:
            if tensor.dims is None and info.name not in model.initializers:
                yield Finding(
                    kind="dynamic-rank",
                    severity=Severity.ERROR if dynamic else Severity.WARNING,
                    node=info.name,
                    message="the input has no rank; engines need one",
                    fix="Export with example inputs, so that shapes are recorded.",
                )
            continue
        noted = [each for each in known if each.input == info.name]
        for each in noted:
            yield Finding(
                kind="dynamic-range",
                severity=Severity.NOTE,
                node=info.name,
                message=f"axis {each.axis} may be {each.min} to {each.max}, usually {each.opt}",
                fix="Nothing; `ytk embedded compile` takes the range from the model.",
                rule_id="dynamic-shape",
            )
        ranged = {each.axis for each in noted}
        if opened := [axis for axis, dim in enumerate(tensor.dims) if not isinstance(dim, int) and axis not in ranged]:
            names = ", ".join(f"axis {axis} ({tensor.dims[axis] or 'unnamed'})" for axis in opened)
            yield Finding(
                kind="dynamic-shape",
                severity=Severity.WARNING if dynamic else Severity.NOTE,
                node=info.name,
                message=f"open extents: {names}"
                + ("; TensorRT builds no engine without an optimisation profile for them" if dynamic else ""),
                fix="Export with fixed shapes, or give a range: `ytk embedded prepare --dynamic`, or `compile --dynamic`.",
                rule_id="dynamic-shape",
                source=profile.source,
            )


def _noted_ranges(model: Model) -> tuple[InputRange, ...]:
    text = next((entry.value for entry in model.proto.metadata_props if entry.key == METADATA_KEY), None)
    return decode_ranges(text, str(model.path)) if text is not None else ()


def unknown_findings(model: Model) -> Iterator[Finding]:
    """Say how much could not be judged, so that silence is not taken for approval."""
    unknown = [
        node
        for node in model.nodes
        if any(rank is None and i not in node.facts.absent_inputs for i, rank in enumerate(node.facts.input_ranks))
    ]
    if unknown:
        why = f" ({model.inference_error})" if model.inference_error else ""
        yield Finding(
            kind="unknown-rank",
            severity=Severity.NOTE,
            node=unknown[0].name,
            op=unknown[0].facts.op_type,
            module_path=unknown[0].module_path,
            message=f"{len(unknown)} of {len(model.nodes)} nodes take tensors of unknown rank{why}: rules about ranks could not be applied to them",
            fix="Export with shapes (value_info), as `ytk embedded prepare` does.",
        )
