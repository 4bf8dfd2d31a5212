"""Pre-flight: compare placeholder nodes with plugin contracts before any device time is spent.

TensorRT reports most of these differences as "Error 9, could not find any supported formats"; here the first one is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import AttributeType, DeploymentTarget, Format, PluginMeta, Variant
from ytk_core.node_contracts import NodeContract, TensorContract, node_contracts_from_onnx
from ytk_core.targets import load_profile

__all__ = [
    "Difference",
    "NodeContract",
    "TensorContract",
    "check_plugins",
    "compare_node_meta",
    "engine_dtype",
    "node_contracts_from_onnx",
]

_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_PRECISION_DTYPE = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}
_PRECISION_OF: dict[DType | None, str] = {DType.FLOAT32: "fp32", DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One disagreement. ``check``: a stable word; ``where``: node and tensor; the sides as text; ``hint``: what to do."""

    check: str
    where: str
    node_side: str
    plugin_side: str
    hint: str

    def text(self) -> str:
        """Give the difference as one sentence."""
        return f"{self.where}: {self.check}: the node has {self.node_side}, the plugin {self.plugin_side}"


def compare_node_meta(node: NodeContract, meta: PluginMeta, precision: str, arch: ArchSpec) -> list[Difference]:
    """Compare one node with one contract.

    Args:
        node: A placeholder.
        meta: The plugin's contract.
        precision: The precision the engine will be built with: fp32, fp16, bf16, ...
        arch: The target.

    Returns:
        All differences, in the order name, namespace, version, built-in name, arity, dtype, format, rank, fixed dims, shape,
        attributes, arch, deployment target, precision; empty if the plugin can stand for the node.
    """
    found = [*_identity(node, meta, arch)]
    if arity := _arity(node, meta, arch):
        found += arity
    else:
        dtypes, fitting = _dtypes(node, meta, precision, arch)
        found += [
            *dtypes,
            *_formats(node, fitting, arch),
            *_ranks(node, meta, arch),
            *_dims(node, meta, arch),
            *_shapes(node, meta, arch),
        ]
    found += [*_attributes(node, meta, arch), *_arch(node, meta, arch), *_deployment(node, meta, arch)]
    if not arity:
        found += _precision(node, meta, precision, arch)
    return found


def _generate(node: NodeContract, arch: ArchSpec, dtype: DType | None = None) -> str:
    """Give the command that makes a kernel for the node; ``dtype``: what its floating-point tensors have to be."""
    target = DeploymentTarget.TENSORRT if arch.engine_name == "tensorrt" else DeploymentTarget.CPU
    config = f"--config deployment_target={target}"
    if (precision := _PRECISION_OF.get(dtype)) is not None:
        config += f" --config precision={precision}"
    return f"`ytk kernelgen compile -r {node.name}.pt2 -g {arch} {config} -o {node.name}.module_source.py`"


def _where(node: NodeContract, tensor: str = "") -> str:
    label = f"{node.namespace}::{node.name}" + (f" ({node.node_name})" if node.node_name else "")
    return f"{label} {tensor}" if tensor else label


def _identity(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    if node.name != meta.plugin_name:
        yield Difference(
            check="name",
            where=_where(node),
            node_side=repr(node.name),
            plugin_side=repr(meta.plugin_name),
            hint=f"Build the plugin again: `ytk embedded build-plugin -a {arch} --plugin-name {node.name} ...`.",
        )
    attribute = node.attributes.get("plugin_namespace", node.namespace)
    for side in dict.fromkeys((node.namespace, attribute)):
        if side != meta.plugin_namespace:
            yield Difference(
                check="namespace",
                where=_where(node),
                node_side=repr(side),
                plugin_side=repr(meta.plugin_namespace),
                hint=f"Build the plugin again: `ytk embedded build-plugin -a {arch} --plugin-name {node.name} --plugin-namespace {node.namespace or chr(39) * 2} ...`.",
            )
    if node.version != meta.plugin_version:
        yield Difference(
            check="version",
            where=_where(node),
            node_side=repr(node.version),
            plugin_side=repr(meta.plugin_version),
            hint=f"Prepare the model and generate the kernel with the same yasp-toolkit: {_generate(node, arch)}.",
        )
    if arch.engine_name == "tensorrt" and load_profile(arch).is_builtin(node.name):
        yield Difference(
            check="builtin-name",
            where=_where(node),
            node_side=repr(node.name),
            plugin_side="a name that TensorRT's own importer takes first, silently",
            hint="Prepare the model again, which never takes such a name by itself: choose another one in `ytk embedded prepare --plugin`.",
        )


def _arity(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> list[Difference]:
    return [
        Difference(
            check="arity",
            where=_where(node),
            node_side=f"{len(have)} {kind}",
            plugin_side=f"{len(want)} ({', '.join(decl.name for decl in want)})",
            hint=f"The kernel must take exactly the node's inputs, in order: {_generate(node, arch)} makes one from its own region.",
        )
        for kind, have, want in (("inputs", node.inputs, meta.inputs), ("outputs", node.outputs, meta.outputs))
        if len(have) != len(want)
    ]


# ---- dtypes and formats ----------------------------------------------------------------------------------------------


def engine_dtype(dtype: DType, arch: ArchSpec) -> DType:
    """Give the dtype in which the engine hands a graph tensor of ``dtype`` to a plugin."""
    if arch.engine_name == "tensorrt":
        return DType(load_profile(arch).narrowed.get(dtype, dtype))
    # OpenVINO and ONNX Runtime give custom operations f32 on a half-precision model (measured).
    return DType.FLOAT32 if dtype in {DType.FLOAT16, DType.BFLOAT16} else dtype


def _accepted(dtype: DType | None, precision: str, arch: ArchSpec) -> frozenset[DType] | None:
    """Give the dtypes a variant may have for a tensor; None: any."""
    if dtype is None:
        return None
    handed = engine_dtype(dtype, arch)
    lower = _PRECISION_DTYPE.get(precision)
    if arch.engine_name == "tensorrt" and handed in _FLOATS and lower is not None:
        return frozenset({handed, lower})
    return frozenset({handed})


def _tensors(node: NodeContract, variant: Variant) -> Iterator[tuple[str, DType | None, DType, Format]]:
    for kind, have, want in (("input", node.inputs, variant.inputs), ("output", node.outputs, variant.outputs)):
        for index, (tensor, declared) in enumerate(zip(have, want, strict=True)):
            yield f"{kind} {index}", tensor.dtype, declared.dtype, declared.format


def _dtypes(
    node: NodeContract, meta: PluginMeta, precision: str, arch: ArchSpec
) -> tuple[list[Difference], list[Variant]]:
    """Give the dtype difference of the closest variant, or the variants that fit."""
    fitting: list[Variant] = []
    closest: tuple[int, str, DType, DType] | None = None
    for variant in meta.variants:
        wrong = [
            (where, have, want)
            for where, have, want, _ in _tensors(node, variant)
            if have is not None and (accepted := _accepted(have, precision, arch)) is not None and want not in accepted
        ]
        if not wrong:
            fitting.append(variant)
        elif closest is None or len(wrong) < closest[0]:
            closest = (len(wrong), *wrong[0])
    if fitting or closest is None:
        return [], fitting
    _, where, have, want = closest
    handed = engine_dtype(have, arch)
    narrowed = f"{have}, which {arch.engine} hands over as {handed}" if handed is not have else str(have)
    return [
        Difference(
            check="dtype",
            where=_where(node, where),
            node_side=narrowed,
            plugin_side=f"{want} (variants: {', '.join(variant.id for variant in meta.variants)})",
            hint=f"Generate the kernel with a variant that takes {handed}: {_generate(node, arch, handed)}.",
        )
    ], []


def _formats(node: NodeContract, fitting: Sequence[Variant], arch: ArchSpec) -> Iterator[Difference]:
    if arch.device_kind != "cpu" or not fitting:
        return
    bad = [
        next(((where, fmt) for where, _, _, fmt in _tensors(node, variant) if fmt is not Format.LINEAR), None)
        for variant in fitting
    ]
    if all(bad) and bad[0] is not None:
        where, fmt = bad[0]
        yield Difference(
            check="format",
            where=_where(node, where),
            node_side="linear, the only layout of CPU engines",
            plugin_side=str(fmt),
            hint=f"Generate the kernel for a CPU engine: {_generate(node, arch)}.",
        )


def _precision(node: NodeContract, meta: PluginMeta, precision: str, arch: ArchSpec) -> Iterator[Difference]:
    lower = _PRECISION_DTYPE.get(precision)
    if lower is None or arch.engine_name != "tensorrt":
        return
    floats = [variant for variant in meta.variants if any(want in _FLOATS for _, _, want, _ in _tensors(node, variant))]
    if floats and not any(want is lower for variant in floats for _, _, want, _ in _tensors(node, variant)):
        have = sorted({str(want) for variant in floats for _, _, want, _ in _tensors(node, variant) if want in _FLOATS})
        yield Difference(
            check="precision",
            where=_where(node),
            node_side=f"an engine built with -p {precision}",
            plugin_side=f"only {', '.join(have)} variants",
            hint=f"Generate the kernel with a {lower} variant ({_generate(node, arch, lower)}), or compile with -p fp32.",
        )


# ---- ranks, dims, shapes ---------------------------------------------------------------------------------------------


def _ranks(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    sides = (
        ("input", node.inputs, [d.rank for d in meta.inputs]),
        ("output", node.outputs, [d.rank for d in meta.outputs]),
    )
    for kind, have, want in sides:
        for index, (tensor, rank) in enumerate(zip(have, want, strict=True)):
            if tensor.rank is not None and tensor.rank != rank:
                yield Difference(
                    check="rank",
                    where=_where(node, f"{kind} {index}"),
                    node_side=f"rank {tensor.rank}",
                    plugin_side=f"rank {rank}",
                    hint=f"Generate the kernel from this node's own region: {_generate(node, arch)}.",
                )


def _known_dims(node: NodeContract, meta: PluginMeta) -> Iterator[tuple[int, int, int | None]]:
    """Give (input, axis, extent) of every input whose dims are known and whose rank fits."""
    for index, (tensor, decl) in enumerate(zip(node.inputs, meta.inputs, strict=True)):
        if tensor.dims is not None and len(tensor.dims) == decl.rank:
            for axis, extent in enumerate(tensor.dims):
                yield index, axis, extent


def _dims(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    constant = {(c.input, c.axis): c.extent for c in meta.constant_axes}
    ranges = {(e.input, e.axis): (e.min, e.max) for e in meta.extents}
    divisors = {(i, axis): divisor for i, axis, divisor in meta.constraints.divisible}
    for index, axis, extent in _known_dims(node, meta):
        where = _where(node, f"input {index} axis {axis}")
        fixed = constant.get((index, axis), meta.inputs[index].dims[axis])
        if fixed is not None and extent != fixed:
            yield Difference(
                check="fixed-dim",
                where=where,
                node_side="a dynamic extent" if extent is None else f"extent {extent}",
                plugin_side=f"extent {fixed}, fixed in the kernel",
                hint=f"Generate the kernel from this node's own region: {_generate(node, arch)}.",
            )
        if extent is None:
            continue
        low, high = ranges.get((index, axis), (extent, extent))
        if not low <= extent <= high:
            yield Difference(
                check="extent",
                where=where,
                node_side=f"extent {extent}",
                plugin_side=f"tested for {low}..{high}",
                hint=f"Prepare the model with a sample of this size, then generate the kernel: {_generate(node, arch)}.",
            )
        divisor = divisors.get((index, axis), 1)
        if extent % divisor:
            yield Difference(
                check="divisible",
                where=where,
                node_side=f"extent {extent}",
                plugin_side=f"multiples of {divisor} only",
                hint=f"Generate the kernel from this node's own region: {_generate(node, arch)}.",
            )


def _shapes(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    dims = []
    for tensor, decl in zip(node.inputs, meta.inputs, strict=True):
        known = tensor.dims if tensor.dims is not None and len(tensor.dims) == decl.rank else (None,) * decl.rank
        dims.append([-1 if extent is None else extent for extent in known])
    for index, (tensor, output) in enumerate(zip(node.outputs, meta.outputs, strict=True)):
        if tensor.dims is None or len(tensor.dims) != output.rank:
            continue
        for axis, (have, text) in enumerate(zip(tensor.dims, output.shape, strict=True)):
            try:
                want = shape_expr.evaluate(text, dims)
            except UserError as err:
                side, differs = err.message, True
            else:
                side, differs = f"{want} (= {text})", have is not None and want not in {have, shape_expr.UNKNOWN}
            if differs:
                yield Difference(
                    check="shape",
                    where=_where(node, f"output {index} axis {axis}"),
                    node_side="a dynamic extent" if have is None else f"extent {have}",
                    plugin_side=side,
                    hint=f"Generate the kernel from this node's own region: {_generate(node, arch)}.",
                )


# ---- attributes and target -------------------------------------------------------------------------------------------


def _is_type(value: Any, kind: AttributeType) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    checks: dict[AttributeType, Callable[[Any], bool]] = {
        AttributeType.INTS: lambda item: isinstance(item, int),
        AttributeType.FLOATS: lambda item: isinstance(item, int | float),
        AttributeType.STRING: lambda item: isinstance(item, str),
    }
    return all(checks[kind](item) for item in items)


def _same(node_value: Any, fixed: Any) -> bool:
    # ONNX knows scalar attributes, the contract lists of one; ONNX stores floats in single precision.
    items = [node_value] if isinstance(node_value, int | float) else node_value
    if isinstance(items, str) or isinstance(fixed, str):
        return bool(items == fixed)
    if all(isinstance(item, int) for item in (*items, *fixed)):
        return list(items) == list(fixed)
    return [np.float32(item) for item in items] == [np.float32(item) for item in fixed]


def _attributes(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    for attribute in meta.attributes:
        where = _where(node, f"attribute {attribute.name!r}")
        value = node.attributes.get(attribute.name)
        if value is None:
            if attribute.required and attribute.value is None:
                yield Difference(
                    check="attribute",
                    where=where,
                    node_side="no such attribute",
                    plugin_side=f"a required {attribute.type}",
                    hint=f"Prepare the model and generate the kernel with the same yasp-toolkit: {_generate(node, arch)}.",
                )
            continue
        if not _is_type(value, attribute.type) or (attribute.value is not None and not _same(value, attribute.value)):
            yield Difference(
                check="attribute",
                where=where,
                node_side=repr(value),
                plugin_side=f"{attribute.type}"
                + ("" if attribute.value is None else f" {attribute.value!r}, fixed in the kernel"),
                hint=f"Generate the kernel from this node's own region: {_generate(node, arch)}.",
            )


def _arch(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    for field, wanted in meta.constraints.arch.items():
        if getattr(arch, field) != wanted:
            yield Difference(
                check="arch",
                where=_where(node),
                node_side=f"the target {arch} ({field} {getattr(arch, field)})",
                plugin_side=f"{field} {wanted} only",
                hint=f"Choose a target with {field} {wanted}, or generate the kernel for this one: {_generate(node, arch)}.",
            )


def _deployment(node: NodeContract, meta: PluginMeta, arch: ArchSpec) -> Iterator[Difference]:
    wanted = DeploymentTarget.TENSORRT if arch.engine_name == "tensorrt" else DeploymentTarget.CPU
    if meta.deployment_target is not wanted:
        yield Difference(
            check="deployment-target",
            where=_where(node),
            node_side=f"the engine {arch.engine} ({arch.engine_name})",
            plugin_side=f"deployment_target {meta.deployment_target}",
            hint=f"Generate the kernel for this engine: {_generate(node, arch)}.",
        )


# ---- all nodes and plugins of one build ------------------------------------------------------------------------------


def check_plugins(
    nodes: Sequence[NodeContract], metas: Mapping[str, PluginMeta], *, precision: str, arch: ArchSpec
) -> list[Difference]:
    """Compare every placeholder of a model with the plugins given for it.

    Args:
        nodes: The placeholders.
        metas: Where each contract comes from (a file name, for messages) to the contract.
        precision: The engine's precision.
        arch: The target.

    Returns:
        Differences; a node without plugin, two plugins of one identity and a plugin that no node uses count too.
    """
    found: list[Difference] = []
    by_identity: dict[tuple[str, str, str], str] = {}
    for origin, meta in metas.items():
        identity = (meta.plugin_namespace, meta.plugin_name, meta.plugin_version)
        if identity in by_identity:
            found.append(
                Difference(
                    check="duplicate-plugin",
                    where=f"{meta.plugin_namespace}::{meta.plugin_name}",
                    node_side="room for one",
                    plugin_side=f"{by_identity[identity]} and {origin}, both version {meta.plugin_version}",
                    hint="Give one of them.",
                )
            )
        by_identity.setdefault(identity, origin)
    wanted = {node.identity for node in nodes}
    unused = [origin for identity, origin in by_identity.items() if identity not in wanted]
    used: set[str] = set()
    for node in nodes:
        chosen = by_identity.get(node.identity) or _likely(node, metas, unused)
        if chosen is not None:
            found += compare_node_meta(node, metas[chosen], precision, arch)
            used.add(chosen)
        else:
            found.append(
                Difference(
                    check="plugin",
                    where=_where(node),
                    node_side=f"version {node.version}",
                    plugin_side="is not given",
                    hint=f"Add --custom-plugin with the .so that `ytk embedded build-plugin -a {arch} --plugin-name {node.name} ...` wrote.",
                )
            )
    found += [
        Difference(
            check="unused-plugin",
            where=origin,
            node_side=f"none of {', '.join(sorted({f'{n.namespace}::{n.name}' for n in nodes})) or 'no placeholders'}",
            plugin_side=f"is {metas[origin].plugin_namespace}::{metas[origin].plugin_name}",
            hint="Leave it out, or prepare the model again.",
        )
        for origin in unused
        if origin not in used
    ]
    return found


def _likely(node: NodeContract, metas: Mapping[str, PluginMeta], unused: Sequence[str]) -> str | None:
    """Give the unused plugin that was probably meant: the same name, else the only one of the same arity."""
    same_name = [origin for origin in unused if metas[origin].plugin_name == node.name]
    arity = (len(node.inputs), len(node.outputs))
    same_arity = [origin for origin in unused if (len(metas[origin].inputs), len(metas[origin].outputs)) == arity]
    for group in (same_name, same_arity):
        if len(group) == 1:
            return group[0]
    return None
