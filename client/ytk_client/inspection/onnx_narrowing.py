"""What changes when a target stores an element type in a smaller one: int64 as int32, float64 as float32.

Exporters write "to the end" as the largest int64: clamped to int32 it still means that. A real value beyond int32 does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ytk_client.inspection import onnx_external
from ytk_client.inspection.findings import Finding, Severity
from ytk_client.inspection.onnx_read import Model, Node, subgraphs
from ytk_core.targets import TargetProfile

_INT64, _DOUBLE = 7, 11
_LOW, _HIGH = -(2**31), 2**31 - 1
_EXTREME = 2**63 - 2
"""From here on a value is "as far as it goes" (INT64_MAX, INT64_MIN, and these minus or plus 1)."""
_PASSES_ON = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Concat", "Expand", "Flatten", "Transpose"})
# Where only "beyond everything" matters: bounds, masks and running extremes.
_BOUNDS: dict[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "Min": frozenset(range(64)),
    "Max": frozenset(range(64)),
    "Where": frozenset({1, 2}),
    "ConstantOfShape": frozenset({0}),
    "Greater": frozenset({0, 1}),
    "GreaterOrEqual": frozenset({0, 1}),
    "Less": frozenset({0, 1}),
    "LessOrEqual": frozenset({0, 1}),
}


def narrowing_findings(model: Model, profile: TargetProfile) -> list[Finding]:
    """List values that a target changes when it narrows them, and say what it narrows at all."""
    found: list[Finding] = []
    if "int64" in profile.narrowed:
        for name, chunks in _constants(model, _INT64, np.int64):
            found += _int64(model, profile, name, chunks)
    if "float64" in profile.narrowed:
        for name, chunks in _constants(model, _DOUBLE, np.float64):
            found += _float64(profile, name, chunks)
    return [*found, *_computed(model, profile)]


def _constants(model: Model, number: int, dtype: Any) -> Iterator[tuple[str, Iterator[np.ndarray[Any, Any]]]]:
    for name, tensor in model.initializers.items():
        if tensor.data_type == number:
            yield name, _chunks(model, tensor, dtype)
    for node, tensor in _constant_nodes(model.proto.graph):
        if tensor.data_type == number:
            yield node.output[0], _chunks(model, tensor, dtype)
    if number == _INT64:
        for name in _constant_ints(model.proto.graph):
            array = model.constants.array(name)
            yield name, iter([array] if array is not None else [])


def _constant_nodes(graph: Any) -> Iterator[tuple[Any, Any]]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type in {"Constant", "ConstantOfShape"} and attribute.name == "value":
                yield node, attribute.t
    for inner in subgraphs(graph):
        yield from _constant_nodes(inner)


def _constant_ints(graph: Any) -> Iterator[str]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name in {"value_int", "value_ints"}:
                yield node.output[0]
    for inner in subgraphs(graph):
        yield from _constant_ints(inner)


def _chunks(model: Model, tensor: Any, dtype: Any) -> Iterator[np.ndarray[Any, Any]]:
    from onnx import numpy_helper

    if onnx_external.is_external(tensor):
        place = onnx_external.external_place(model.path, tensor)
        if not isinstance(place, str):  # else a finding of its own
            yield from onnx_external.external_chunks(place, dtype)
        return
    try:
        yield numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return  # shorter than its shape: the checker says so


def _int64(
    model: Model, profile: TargetProfile, name: str, chunks: Iterator[np.ndarray[Any, Any]]
) -> Iterator[Finding]:
    outside: list[int] = []
    count = 0
    for chunk in chunks:
        beyond = chunk[(chunk < _LOW) | (chunk > _HIGH)]
        count += beyond.size
        outside += [int(value) for value in beyond[: 8 - len(outside)]]
        if any(abs(value) < _EXTREME for value in outside):
            break
    if not outside:
        return
    uses = list(_uses(model, name))
    users = ", ".join(dict.fromkeys(f"{node.facts.op_type} {node.name}" for node, _ in uses[:3])) or "nobody"
    real = next((value for value in outside if not _is_sentinel(value, uses)), None)
    module = next((node.module_path for node, _ in uses if node.module_path), "")
    line = next((node.source_line for node, _ in uses if node.source_line), "")
    source = f"{profile.name} stores int64 as int32: {profile.source}"
    if real is None:
        yield Finding(
            kind="int64-sentinel",
            severity=Severity.NOTE,
            node=name,
            module_path=module,
            message=f"{outside[0]} means 'to the end' in {users}; as int32 it becomes {_clamped(outside[0])}, which means the same",
            fix="Nothing.",
            rule_id="narrowed",
            source=source,
        )
        return
    yield Finding(
        kind="int64",
        severity=Severity.ERROR,
        node=name,
        op=uses[0][0].facts.op_type if uses else "",
        module_path=module,
        source_line=line,
        message=f"the value {real} (of {count} beyond int32), used by {users}, would become {_clamped(real)}",
        fix="Compute it in float, split it into parts below 2^31, or mask the values on the host.",
        rule=f"{profile.name} stores int64 as int32 and clamps",
        rule_id="narrowed",
        source=source,
    )


def _clamped(value: int) -> int:
    return max(_LOW, min(_HIGH, value))


def _uses(model: Model, name: str) -> Iterator[tuple[Node, int]]:
    """Give whoever takes a value, seen through operators that only pass it on."""
    pending, seen = [name], {name}
    while pending:
        for node, index in model.consumers.get(pending.pop(), ()):
            if node.facts.op_type in _PASSES_ON:
                new = [output for output in node.outputs if output not in seen]
                pending += new
                seen.update(new)
            else:
                yield node, index


def _is_sentinel(value: int, uses: list[tuple[Node, int]]) -> bool:
    """Tell whether clamping a value changes nothing for any of its users.

    A Slice's ends are clamped to the extent anyway. In a bound, only the extremes stand for "no bound".
    """

    def harmless(node: Node, index: int) -> bool:
        if node.facts.op_type == "Slice":
            return index in {1, 2}
        return abs(value) >= _EXTREME and index in _BOUNDS.get(node.facts.op_type, ())

    return bool(uses) and all(harmless(node, index) for node, index in uses)


def _float64(profile: TargetProfile, name: str, chunks: Iterator[np.ndarray[Any, Any]]) -> Iterator[Finding]:
    limit = float(np.finfo(np.float32).max)
    for chunk in chunks:
        finite = chunk[np.isfinite(chunk)]
        beyond = finite[np.abs(finite) > limit]
        if beyond.size:
            yield Finding(
                kind="float64",
                severity=Severity.ERROR,
                node=name,
                message=f"the value {beyond.flat[0]:g} would become infinite",
                fix="Scale the values, or keep them below 3.4e38.",
                rule=f"{profile.name} stores float64 as float32",
                rule_id="narrowed",
                source=profile.source,
            )
            return


def _computed(model: Model, profile: TargetProfile) -> Iterator[Finding]:
    """Say what is computed in a type that the target narrows: one finding per type."""
    for wide, narrow in profile.narrowed.items():
        nodes = [node for node in model.nodes if wide in node.facts.output_dtypes and node.facts.op_type != "Constant"]
        ports = [
            info.name
            for info in (*model.proto.graph.input, *model.proto.graph.output)
            if model.tensors[info.name].dtype == wide and info.name not in model.initializers
        ]
        is_float = wide == "float64"
        if nodes or ports:
            where = f"; inputs and outputs: {', '.join(ports)}" if ports else ""
            yield Finding(
                kind=f"narrowed-{wide}",
                severity=Severity.WARNING if is_float else Severity.NOTE,
                node=nodes[0].name if nodes else ports[0],
                op=nodes[0].facts.op_type if nodes else "",
                module_path=nodes[0].module_path if nodes else "",
                message=f"{len(nodes)} nodes give {wide}, which {profile.name} computes in {narrow}{where}",
                fix="Convert the model to float32 (`model.float()`), and judge it against that."
                if is_float
                else "Nothing, as long as run-time values stay below 2^31; feed the engine int32.",
                rule_id="narrowed",
                source=profile.source,
            )
