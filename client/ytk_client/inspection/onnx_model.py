"""ONNX models that anyone exported: what a target refuses, computes wrongly without a word, or has to be told first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, dims_text, ordered
from ytk_client.inspection.onnx_external import external_findings, is_external
from ytk_client.inspection.onnx_narrowing import narrowing_findings
from ytk_client.inspection.onnx_read import Model, load
from ytk_client.inspection.onnx_rules import (
    custom_findings,
    dynamic_findings,
    is_custom,
    node_findings,
    opset_findings,
    quantize_findings,
    unknown_findings,
)
from ytk_client.inspection.request import Request
from ytk_client.inspection.second_opinion import ask_parser, opinion_findings, opinion_rows, opinion_table
from ytk_core.catalogue.contract import NAMESPACE as CATALOGUE
from ytk_core.node_contracts import NodeContract, node_contracts_from_onnx

_TOP_OPERATORS = 40


def inspect_model(path: Path, request: Request) -> Inspection:
    """Hold an ONNX model against a target.

    Raises:
        FormatError: It is no ONNX model, damaged or hostile; or a plugin that was given is not one.
        NotAvailableError: A second opinion was asked for, and no parser is installed.
    """
    model = load(path)
    profile = request.profile
    external = external_findings(path, model.external.values(), _operators_of(model))
    contracts = node_contracts_from_onnx(path)
    findings = [
        *external,
        *_checker_findings(model),
        *node_findings(model, profile),
        *custom_findings(model, profile),
        *_plugin_findings(contracts, request),
        *narrowing_findings(model, profile),
        *quantize_findings(model, profile),
        *opset_findings(model, profile),
        *dynamic_findings(model, profile),
        *unknown_findings(model),
    ]
    content, tables = _content(model, contracts, findings), list(_tables(model, contracts))
    fields = list(_fields(model))
    if request.second_opinion:
        opinion = ask_parser(model, sandbox=request.sandbox)
        findings += opinion_findings(model, profile, opinion)
        rows = opinion_rows(model, profile, opinion)
        fields.append(("second opinion", f"{opinion.parser} refuses {len(opinion.refused)} nodes"))
        tables.append(opinion_table(profile, opinion, rows))
        content["second_opinion"] = {"parser": opinion.parser, "nodes": rows, "not_reached": len(opinion.unjudged)}
    return Inspection(
        kind="model",
        content=content,
        fields=tuple(fields),
        tables=tuple(tables),
        findings=ordered(findings),
        target=f"{profile.name} ({profile.engine} {'.'.join(map(str, profile.engine_version))}, rules of {profile.revision})",
    )


def _operators_of(model: Model) -> dict[str, list[tuple[str, int]]]:
    return {
        name: [(node.facts.op_type, index) for node, index in uses if not node.facts.domain]
        for name, uses in model.consumers.items()
    }


def _checker_findings(model: Model) -> Iterator[Finding]:
    """Ask ONNX's own checker: attributes and arity of every operator, order and names of the graph."""
    import onnx

    try:
        onnx.checker.check_model(_checkable(model))
    except Exception as err:  # noqa: BLE001 - ValidationError, or a RuntimeError of the C++ side
        text = " ".join(str(err).split())
        yield Finding(
            kind="invalid",
            severity=Severity.ERROR,
            message=f"ONNX's checker refuses the model: {text[:400]}",
            fix="Export the model again; a parser that is less strict may still misread it.",
            rule_id="onnx-checker",
            source=f"onnx {onnx.__version__}",
        )


def _checkable(model: Model) -> Any:
    """Give a copy that the checker judges by its graph alone.

    External weights become inputs (ours is the better check of these), and outputs without a recorded shape get one: the checker
    wants the field, parsers do not.
    """
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    given = {info.name for info in graph.input}
    for tensor in [each for each in graph.initializer if is_external(each)]:
        if tensor.name not in given:
            info = graph.input.add(name=tensor.name)
            info.type.tensor_type.elem_type = tensor.data_type
            for extent in tensor.dims:
                info.type.tensor_type.shape.dim.add(dim_value=extent)
            info.type.tensor_type.shape.SetInParent()
        graph.initializer.remove(tensor)
    for info in (*graph.input, *graph.output):
        if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()
    return proto


def _plugin_findings(contracts: list[NodeContract], request: Request) -> list[Finding]:
    """Compare the placeholders with the plugins that were given; without any, say what is needed."""
    if not request.plugins:
        return [
            Finding(
                kind="needs-plugin",
                severity=Severity.NOTE,
                node=node.node_name,
                op=f"{node.namespace}::{node.name}",
                message=f"needs the plugin {node.namespace}::{node.name} version {node.version}"
                + (", which we ship" if node.namespace == CATALOGUE else ""),
                fix="Nothing: `ytk embedded compile` builds it."
                if node.namespace == CATALOGUE
                else f"ytk embedded build-plugin --plugin-name {node.name} ...; check it with --custom-plugin here",
            )
            for node in {contract.identity: contract for contract in contracts}.values()
            if "plugin_namespace" in node.attributes
        ]
    from ytk_client.plugins import load_plugins
    from ytk_core.archspec import ArchSpec
    from ytk_core.preflight import check_plugins

    plugins = load_plugins(request.plugins)
    arch = request.arch or ArchSpec.parse(plugins[0].manifest.arch_spec)
    metas = {str(plugin.path): plugin.manifest.meta for plugin in plugins}
    found = [
        Finding(
            kind=f"plugin-{difference.check}",
            severity=Severity.ERROR,
            node=difference.where,
            message=difference.text(),
            fix=difference.hint,
        )
        for difference in check_plugins(contracts, metas, precision=request.precision, arch=arch)
    ]
    found += [
        Finding(
            kind="arch",
            severity=Severity.ERROR,
            node=plugin.path.name,
            message=f"built for {plugin.manifest.arch_spec}; {arch} differs in {', '.join(fields)}",
            fix=f"Build it for this target: ytk embedded build-plugin -a {arch} ...",
        )
        for plugin in plugins
        if (fields := arch.differing_fields(ArchSpec.parse(plugin.manifest.arch_spec)))
    ]
    return found


def _fields(model: Model) -> Iterator[tuple[str, object]]:
    proto = model.proto
    producer = f"{proto.producer_name} {proto.producer_version}".strip()
    yield "producer", producer or None
    yield "opset", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(model.opsets.items()))
    yield "nodes", len(model.nodes)
    places = [entry for tensor in model.external.values() for entry in tensor.external_data]
    files = ", ".join(sorted({entry.value for entry in places if entry.key == "location"}))
    yield "weights", f"{len(model.initializers)} tensors" + (f", {len(model.external)} in {files}" if files else "")
    yield "custom nodes", sum(map(is_custom, model.nodes))


def _ports(model: Model) -> Iterator[tuple[object, ...]]:
    graph = model.proto.graph
    for side, infos in (("in", graph.input), ("out", graph.output)):
        for info in infos:
            if info.name not in model.initializers:
                tensor = model.tensors[info.name]
                yield side, info.name, tensor.dtype or "?", dims_text(tensor.dims)


def _tables(model: Model, contracts: list[NodeContract]) -> Iterator[Table]:
    yield Table(title="Inputs and outputs", columns=("", "NAME", "DTYPE", "SHAPE"), rows=tuple(_ports(model)))
    counts = Counter(
        f"{node.facts.domain}::{node.facts.op_type}" if node.facts.domain else node.facts.op_type
        for node in model.nodes
    )
    yield Table(title="Operators", columns=("OPERATOR", "COUNT"), rows=tuple(counts.most_common(_TOP_OPERATORS)))

    def side(tensors: Any) -> str:
        return ", ".join(f"{tensor.dtype or '?'} {dims_text(tensor.dims)}" for tensor in tensors)

    yield Table(
        title="Nodes that need a plugin",
        columns=("PLACEHOLDER", "VERSION", "NODE", "INPUTS", "OUTPUTS"),
        rows=tuple(
            (f"{node.namespace}::{node.name}", node.version, node.node_name, side(node.inputs), side(node.outputs))
            for node in contracts
        ),
    )


def _content(model: Model, contracts: list[NodeContract], findings: list[Finding]) -> dict[str, Any]:
    bad = {finding.node for finding in findings if finding.severity is Severity.ERROR}
    return {
        "producer": model.proto.producer_name,
        "opsets": dict(model.opsets),
        "nodes": len(model.nodes),
        "nodes_with_errors": sum(node.name in bad for node in model.nodes),
        "operators": dict(Counter(node.facts.op_type for node in model.nodes).most_common()),
        "ports": [
            {"side": side, "name": name, "dtype": dtype, "shape": shape} for side, name, dtype, shape in _ports(model)
        ],
        "custom_nodes": [
            {"placeholder": f"{node.namespace}::{node.name}", "version": node.version, "node": node.node_name}
            for node in contracts
        ],
    }
