"""plugin_meta as YAML: strict loading, canonical dumping, digest, and the checks that need more than one field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml

from ytk_core.cpu_build import check_compile_flags
from ytk_core.cuda_build import check_device_flags
from ytk_core.digests import check_digest, digest_bytes
from ytk_core.errors import FormatError, UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.codec import check_schema_version, convert
from ytk_core.formats.plugin_meta import (
    SCHEMA_VERSION,
    AttributeDecl,
    AttributeType,
    DeploymentTarget,
    Format,
    InputDecl,
    OutputDecl,
    PluginMeta,
    Variant,
)

MAX_RANK = 8
MAX_YAML_BYTES = 256 * 1024
MAX_TENSORS = 64

_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# The namespace is an ONNX domain: dotted names are usual there.
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._]{0,31}")
_VARIANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ARCH_FIELDS = frozenset({"cpu", "device", "os", "runtime", "engine"})


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses aliases (expansion bombs) and duplicate keys, and reads 1e-5 as a number."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be a string", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 as PyYAML reads it takes 1e-5 for a string; 1.2 and every writer of tolerances take it for a number.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def load_meta(yaml_text: str, origin: str = "<string>") -> PluginMeta:
    """Parse and check the YAML of a plugin_meta.

    Raises:
        FormatError: Names ``origin`` and the line or the path of the value.
    """
    if len(yaml_text) > MAX_YAML_BYTES:
        msg = f"{origin}: {len(yaml_text)} characters of YAML, more than {MAX_YAML_BYTES}"
        raise FormatError(msg, hint="A plugin_meta is a few kilobytes; check the file.")
    try:
        raw = yaml.load(yaml_text, Loader=_StrictLoader)  # noqa: S506  # derived from SafeLoader
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        msg = f"{origin}: not a plugin_meta: {err.problem or err.context} ({place})"
        raise FormatError(msg, hint="Correct the YAML, or generate the kernel again.") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        msg = f"{origin}: not a plugin_meta: {err or type(err).__name__}"
        raise FormatError(msg, hint="Correct the YAML, or generate the kernel again.") from err
    check_schema_version(raw, SCHEMA_VERSION, origin, "plugin_meta")
    meta = convert(raw, PluginMeta, origin)
    _validate(meta, origin)
    return meta


def dump_meta(meta: PluginMeta) -> str:
    """Give the YAML of a plugin_meta; :func:`load_meta` gives the same value back, the text is deterministic."""
    return yaml.safe_dump(
        msgspec.to_builtins(meta), sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )


def meta_digest(meta: PluginMeta) -> str:
    """Give the digest of the contract's content; it does not depend on how the YAML is laid out."""
    return digest_bytes(msgspec.json.encode(meta, order="sorted"))


def validate(meta: PluginMeta) -> None:
    """Check everything that needs more than one field.

    Raises:
        FormatError: The first thing that is wrong, with its path.
    """
    _validate(meta, "plugin_meta")


def _validate(meta: PluginMeta, origin: str) -> None:
    for place, problem in _problems(meta):
        msg = f"{origin}: {place}: {problem}"
        raise FormatError(
            msg, code="bad_plugin_meta", hint="See docs/formats.md, plugin_meta; generate the kernel again."
        )


def _problems(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    if meta.schema_version != SCHEMA_VERSION:
        yield "schema_version", f"{meta.schema_version} is not {SCHEMA_VERSION}"
    yield from _names(meta)
    yield from _tensors(meta)
    yield from _shapes(meta)
    yield from _variants(meta)
    yield from _attributes(meta)
    yield from _axes(meta)
    yield from _numbers(meta)


def _names(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    if not _C_IDENTIFIER.fullmatch(meta.plugin_name):
        yield "plugin_name", f"{meta.plugin_name!r} is no C identifier"
    if meta.plugin_namespace and not _NAMESPACE.fullmatch(meta.plugin_namespace):
        yield "plugin_namespace", f"{meta.plugin_namespace!r} is no dotted identifier"
    if not _VERSION.fullmatch(meta.plugin_version):
        yield "plugin_version", f"{meta.plugin_version!r} is no version (letters, digits, '.', '_')"
    for field, symbol in (("launch", meta.launcher.launch), ("workspace", meta.launcher.workspace)):
        if symbol is not None and not _C_IDENTIFIER.fullmatch(symbol):
            yield f"launcher.{field}", f"{symbol!r} is no C identifier"
    if meta.launcher.launch == "ytk_plugin" or meta.launcher.workspace == "ytk_plugin":
        yield "launcher", "the symbol 'ytk_plugin' is the library's own entry point"
    if meta.launcher.launch == meta.launcher.workspace:
        yield "launcher", f"launch and workspace are both {meta.launcher.launch!r}"
    try:
        check_digest(meta.region_digest)
    except UserError as err:
        yield "region_digest", err.message


def _tensors(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    for kind, count in (("inputs", len(meta.inputs)), ("outputs", len(meta.outputs))):
        if not 1 <= count <= MAX_TENSORS:
            yield kind, f"{count} of them; 1 to {MAX_TENSORS} are possible"
    seen: set[str] = set()
    groups: tuple[tuple[str, Sequence[InputDecl | OutputDecl]], ...] = (
        ("inputs", meta.inputs),
        ("outputs", meta.outputs),
    )
    for kind, decls in groups:
        for index, decl in enumerate(decls):
            place = f"{kind}[{index}]"
            if not _C_IDENTIFIER.fullmatch(decl.name):
                yield f"{place}.name", f"{decl.name!r} is no C identifier"
            if decl.name in seen:
                yield f"{place}.name", f"{decl.name!r} occurs twice"
            seen.add(decl.name)
            if not 0 <= decl.rank <= MAX_RANK:
                yield f"{place}.rank", f"{decl.rank} is not in 0..{MAX_RANK}"
    for index, decl in enumerate(meta.inputs):
        if len(decl.dims) != decl.rank:
            yield f"inputs[{index}].dims", f"{len(decl.dims)} dims for rank {decl.rank}"
        for axis, extent in enumerate(decl.dims):
            if extent is not None and extent < 0:
                yield f"inputs[{index}].dims[{axis}]", f"{extent} is negative; null stands for any extent"


def _shapes(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    # The largest dims that respect the declared ranks: only existence matters here.
    for index, output in enumerate(meta.outputs):
        if len(output.shape) != output.rank:
            yield f"outputs[{index}].shape", f"{len(output.shape)} expressions for rank {output.rank}"
        for axis, text in enumerate(output.shape):
            place = f"outputs[{index}].shape[{axis}]"
            try:
                expr = shape_expr.parse(text)
            except FormatError as err:
                yield place, err.message
                continue
            for dim in shape_expr.dims_of(expr):
                if dim.input >= len(meta.inputs):
                    yield place, f"{text!r} refers to input {dim.input}; there are {len(meta.inputs)}"
                elif dim.axis >= meta.inputs[dim.input].rank:
                    yield (
                        place,
                        f"{text!r} refers to axis {dim.axis} of input {dim.input}, whose rank is {meta.inputs[dim.input].rank}",
                    )
            yield from _fixed_extent(meta, place, expr)


def _fixed_extent(meta: PluginMeta, place: str, expr: shape_expr.Expr) -> Iterator[tuple[str, str]]:
    """Evaluate where every dim is fixed: an expression that is negative there can never be right."""
    dims = [[-1 if extent is None else extent for extent in decl.dims] for decl in meta.inputs]
    used = list(shape_expr.dims_of(expr))
    if any(dim.input >= len(dims) or dim.axis >= len(dims[dim.input]) for dim in used):
        return
    try:
        shape_expr.evaluate(expr, dims)
    except UserError as err:
        yield place, err.message


def _variants(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    if not meta.variants:
        yield "variants", "at least one is needed"
    ids: set[str] = set()
    types: dict[str, str] = {}
    for index, variant in enumerate(meta.variants):
        place = f"variants[{index}]"
        if not _VARIANT_ID.fullmatch(variant.id):
            yield f"{place}.id", f"{variant.id!r} is no variant id (letters, digits, '_', '.', '-')"
        if variant.id in ids:
            yield f"{place}.id", f"{variant.id!r} occurs twice"
        ids.add(variant.id)
        if len(variant.inputs) != len(meta.inputs):
            yield f"{place}.inputs", f"{len(variant.inputs)} types for {len(meta.inputs)} inputs"
        if len(variant.outputs) != len(meta.outputs):
            yield f"{place}.outputs", f"{len(variant.outputs)} types for {len(meta.outputs)} outputs"
        key = str([(t.dtype, t.format) for t in (*variant.inputs, *variant.outputs)])
        if key in types:
            yield place, f"the same types as variant {types[key]!r}"
        types[key] = variant.id
        yield from _formats(meta, place, variant)


def _formats(meta: PluginMeta, place: str, variant: Variant) -> Iterator[tuple[str, str]]:
    ranks = [*((decl.rank) for decl in meta.inputs), *((decl.rank) for decl in meta.outputs)]
    for rank, tensor in zip(ranks, (*variant.inputs, *variant.outputs), strict=False):
        if tensor.format is not Format.LINEAR and rank < 3:
            yield place, f"the format {tensor.format} needs a channel axis, the rank is {rank}"
        if tensor.format is not Format.LINEAR and meta.deployment_target is DeploymentTarget.CPU:
            yield place, f"the format {tensor.format} exists on TensorRT only; CPU kernels take linear tensors"


def _attributes(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for index, attribute in enumerate(meta.attributes):
        place = f"attributes[{index}]"
        if not _C_IDENTIFIER.fullmatch(attribute.name):
            yield f"{place}.name", f"{attribute.name!r} is no C identifier"
        if attribute.name in seen:
            yield f"{place}.name", f"{attribute.name!r} occurs twice"
        if attribute.name in {"plugin_namespace", "plugin_version"}:
            yield f"{place}.name", f"{attribute.name!r} is the placeholder's own attribute"
        seen.add(attribute.name)
        yield from _attribute_value(place, attribute)


def _attribute_value(place: str, attribute: AttributeDecl) -> Iterator[tuple[str, str]]:
    value = attribute.value
    if value is None:
        return
    fits = {
        AttributeType.STRING: isinstance(value, str),
        AttributeType.INTS: isinstance(value, list) and all(type(item) is int for item in value),
        AttributeType.FLOATS: isinstance(value, list),
    }[attribute.type]
    if not fits:
        yield f"{place}.value", f"{value!r} is not of type {attribute.type}"


def _axes(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    def exists(input_index: int, axis: int) -> str | None:
        if not 0 <= input_index < len(meta.inputs):
            return f"input {input_index} does not exist; there are {len(meta.inputs)}"
        if not 0 <= axis < meta.inputs[input_index].rank:
            return f"axis {axis} of input {input_index} does not exist; its rank is {meta.inputs[input_index].rank}"
        return None

    for index, constant in enumerate(meta.constant_axes):
        place = f"constant_axes[{index}]"
        if (problem := exists(constant.input, constant.axis)) is not None:
            yield place, problem
            continue
        declared = (
            meta.inputs[constant.input].dims[constant.axis]
            if constant.axis < len(meta.inputs[constant.input].dims)
            else None
        )
        if constant.extent < 0 or declared not in {None, constant.extent}:
            yield place, f"the extent {constant.extent} differs from the declared {declared}"
    for index, extent in enumerate(meta.extents):
        place = f"extents[{index}]"
        if (problem := exists(extent.input, extent.axis)) is not None:
            yield place, problem
            continue
        if not 0 <= extent.min <= extent.opt <= extent.max:
            yield place, f"min {extent.min}, opt {extent.opt}, max {extent.max} are not in order"
        if meta.inputs[extent.input].dims[extent.axis : extent.axis + 1] != [None]:
            yield place, f"axis {extent.axis} of input {extent.input} is fixed, so it has no range"
    for index, (input_index, axis, divisor) in enumerate(meta.constraints.divisible):
        place = f"constraints.divisible[{index}]"
        if (problem := exists(input_index, axis)) is not None:
            yield place, problem
        elif divisor < 1:
            yield place, f"the divisor {divisor} is not positive"


def _numbers(meta: PluginMeta) -> Iterator[tuple[str, str]]:
    alignment = meta.constraints.alignment_bytes
    if not 1 <= alignment <= 4096 or alignment & (alignment - 1):
        yield "constraints.alignment_bytes", f"{alignment} is no power of two in 1..4096"
    if unknown := sorted(set(meta.constraints.arch) - _ARCH_FIELDS):
        yield "constraints.arch", f"{unknown} are no fields of an arch spec"
    for field, value in (("rtol", meta.tolerance.rtol), ("atol", meta.tolerance.atol)):
        # The comparison is false for NaN too.
        if not 0 <= value < float("inf"):
            yield f"tolerance.{field}", f"{value} is not a finite number >= 0"
    if not meta.tolerance.source:
        yield "tolerance.source", "it must say where the figures come from"
    if meta.launcher.fixed_workspace_bytes < 0:
        yield "launcher.fixed_workspace_bytes", f"{meta.launcher.fixed_workspace_bytes} is negative"
    if meta.sites < 1:
        yield "sites", f"{meta.sites} is not positive"
    # A TensorRT kernel's flags are the CUDA compiler's.
    check_flags = check_device_flags if meta.deployment_target is DeploymentTarget.TENSORRT else check_compile_flags
    try:
        check_flags(meta.compile_flags)
    except UserError as err:
        yield "compile_flags", err.message
