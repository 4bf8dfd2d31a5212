"""What a model that is to be compiled says about its open axes, and whether its plugins take all of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_client.extent_bounds import Bounds, bounds
from ytk_core.errors import UserError
from ytk_core.input_ranges import METADATA_KEY, InputRange, check_ranges, decode_ranges

if TYPE_CHECKING:
    from ytk_core.archspec import ArchSpec
    from ytk_core.formats.plugin_meta import PluginMeta


def ranges_of(onnx_path: Path, given: Sequence[InputRange], arch: ArchSpec) -> tuple[InputRange, ...]:
    """Give the ranges of a model's open axes: those of its metadata, and ``given`` ones, which win.

    Args:
        onnx_path: A model that was read before, so it is one.
        given: From the command line.
        arch: The target; an engine of TensorRT needs a range for every open axis.

    Raises:
        FormatError: The metadata is damaged.
        UserError: ``bad_dynamic`` or ``dynamic_without_range``.
    """
    graph, metadata = _read(onnx_path)
    entry = metadata.get(METADATA_KEY)
    noted = decode_ranges(entry, str(onnx_path)) if entry is not None else ()
    known = {(each.input, each.axis): each for each in (*noted, *given)}
    ranges = tuple(known.values())
    check_ranges(ranges, _inputs(graph), str(onnx_path), all_open=arch.engine_name == "tensorrt")
    return ranges


def check_plugins_take(onnx_path: Path, ranges: Sequence[InputRange], metas: Sequence[PluginMeta]) -> None:
    """Hold the ranges that reach a plugin's inputs against the extents that its kernel was tested for.

    An axis is followed by how the graph writes its extent: the name of an input's own axis, or an expression of such names
    (``2*s0 + 1``). What shape inference gave a name of its own cannot be followed.

    Raises:
        UserError: ``preflight``: a plugin takes less than the model may be given.
    """
    if not ranges:
        return
    graph, _ = _read(onnx_path, infer=True)
    dims = {info.name: _dims(info) for info in (*graph.input, *graph.value_info, *graph.output)}
    named: dict[str, InputRange] = {}
    for each in ranges:
        name = (dims.get(each.input) or ())[each.axis : each.axis + 1]
        if name and isinstance(name[0], str):
            named[name[0]] = each
    symbols = {name: (each.min, each.max) for name, each in named.items()}
    seen: dict[str, Bounds | None] = {}
    by_name = {(meta.plugin_namespace, meta.plugin_name): meta for meta in metas}
    for node in graph.node:
        meta = by_name.get((node.domain, node.op_type))
        for extent in meta.extents if meta is not None else ():
            axes = dims.get(node.input[extent.input]) if extent.input < len(node.input) else None
            written = axes[extent.axis] if axes and extent.axis < len(axes) else None
            have = _followed(written, symbols, seen) if isinstance(written, str) else None
            if have is None or (extent.min <= have[0] and have[1] <= extent.max):
                continue
            msg = (
                f"{onnx_path}: axis {extent.axis} of input {extent.input} of {node.name} may be {have[0]} to {have[1]} "
                f"({_whence(str(written), named)}), the plugin {node.domain}::{node.op_type} was tested for {extent.min} to {extent.max}"
            )
            hint = "Generate the kernel from the region of this model, or narrow the range with --dynamic."
            raise UserError(msg, code="preflight", hint=hint)


def _followed(written: str, symbols: Mapping[str, Bounds], seen: dict[str, Bounds | None]) -> Bounds | None:
    """Give what an extent may be: a name (which need not be one of Python's) or an expression; ``seen`` has what was asked before."""
    if written in symbols:
        return symbols[written]
    if written not in seen:
        seen[written] = bounds(written, symbols)
    return seen[written]


def _whence(written: str, named: dict[str, InputRange]) -> str:
    """Say which inputs' axes an extent comes from, with the expression where it is more than a name."""
    if written in named:
        return f"{named[written].input}:{named[written].axis}"
    parts = [
        f"{name} = {each.input}:{each.axis}"
        for name, each in named.items()
        if re.search(rf"\b{re.escape(name)}\b", written)
    ]
    return f"{written}, {', '.join(parts)}" if parts else written


def _read(path: Path, *, infer: bool = False) -> tuple[Any, dict[str, str]]:
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    if infer:
        model = onnx.shape_inference.infer_shapes(model)
    return model.graph, {entry.key: entry.value for entry in model.metadata_props}


def _inputs(graph: Any) -> dict[str, tuple[int | str | None, ...] | None]:
    weights = {tensor.name for tensor in graph.initializer}
    return {info.name: _dims(info) for info in graph.input if info.name not in weights}


def _dims(info: Any) -> tuple[int | str | None, ...] | None:
    tensor = info.type.tensor_type
    return tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None


def _dim(dim: Any) -> int | str | None:
    return int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or None
