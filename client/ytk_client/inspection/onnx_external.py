"""External data of an ONNX model: whether it is there, inside of the model's folder, and as long as the tensors need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ytk_client.inspection.findings import Finding, Severity

# Inputs that engines need as values while they build; external data there is refused by parsers (ONNX Runtime, shape inference).
_SHAPE_INPUTS: dict[str, frozenset[int]] = {
    "Reshape": frozenset({1}),
    "Expand": frozenset({1}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Squeeze": frozenset({1}),
    "Unsqueeze": frozenset({1}),
    "Resize": frozenset({1, 2, 3}),
    "Pad": frozenset({1, 3}),
    "Tile": frozenset({1}),
    "TopK": frozenset({1}),
    "Split": frozenset({1}),
    "ConstantOfShape": frozenset({0}),
    "OneHot": frozenset({1}),
    "Range": frozenset({0, 1, 2}),
    "CumSum": frozenset({1}),
}
_BITS: dict[int, int] = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64}
_BITS |= {14: 64, 15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8}
_CHUNK_BYTES = 16 * 1024 * 1024


def is_external(tensor: Any) -> bool:
    """Tell whether a TensorProto's data lies in another file."""
    return bool(tensor.HasField("data_location") and tensor.data_location == 1)


def is_shape_input(op_type: str, index: int) -> bool:
    """Tell whether an engine needs this input's value while it builds."""
    return index in _SHAPE_INPUTS.get(op_type, ()) or (op_type.startswith("Reduce") and index == 1)


def needed_bytes(tensor: Any) -> int | None:
    """Give how many bytes a tensor's data has; None for strings and unknown element types."""
    bits = _BITS.get(tensor.data_type)
    return None if bits is None else -(-math.prod(tensor.dims) * bits // 8)


def external_place(model: Path, tensor: Any) -> tuple[Path, int, int] | str:
    """Give file, offset and length of a tensor's data, or why they are not acceptable."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not location:
        return "it names no file"
    if location.startswith("/") or "\\" in location or ".." in PurePosixPath(location).parts:
        return f"its file {location!r} lies outside of the model's folder, which parsers refuse"
    path = model.parent / location
    try:
        offset, needed = int(entries.get("offset", "0")), needed_bytes(tensor)
        size = path.stat().st_size if path.is_file() else -1
        length = int(entries["length"]) if "length" in entries else max(size - offset, 0)
    except ValueError:
        return f"offset {entries.get('offset')!r} or length {entries.get('length')!r} is no number"
    if size < 0:
        return f"its file {location!r} is not beside the model"
    if path.resolve().parent != model.resolve().parent and not path.resolve().is_relative_to(model.resolve().parent):
        return f"its file {location!r} is a link that leads out of the model's folder, which parsers refuse"
    if offset < 0 or length < 0 or offset + length > size:
        return f"it ends at byte {offset + length} of {location!r}, which has {size}: truncated, or of another model"
    if needed is not None and length != needed:
        return f"it has {length} bytes of data, its type and shape need {needed}"
    return path, offset, length


def read_external(place: tuple[Path, int, int]) -> bytes:
    """Read the bytes of a (small) external tensor."""
    path, offset, length = place
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def external_chunks(place: tuple[Path, int, int], dtype: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Give the values of an external tensor in pieces that fit in memory."""
    path, offset, length = place
    with path.open("rb") as stream:
        stream.seek(offset)
        while length > 0:
            block = stream.read(min(_CHUNK_BYTES, length))
            if not block:
                return
            length -= len(block)
            yield np.frombuffer(block[: len(block) - len(block) % np.dtype(dtype).itemsize], dtype)


def external_findings(
    model: Path, tensors: Iterable[Any], consumers: dict[str, list[tuple[str, int]]]
) -> list[Finding]:
    """Check every external tensor.

    Args:
        model: The ONNX file.
        tensors: Those whose data lies elsewhere.
        consumers: By tensor name: (operator, input index) of whoever takes it.
    """
    found: list[Finding] = []
    for tensor in tensors:
        place = external_place(model, tensor)
        if isinstance(place, str):
            found.append(
                Finding(
                    kind="external-data",
                    severity=Severity.ERROR,
                    node=tensor.name,
                    message=f"external data: {place}",
                    fix="Copy the model together with its data file, or export it again.",
                )
            )
        shaped = next((use for use in consumers.get(tensor.name, ()) if is_shape_input(*use)), None)
        if shaped is not None:
            found.append(
                Finding(
                    kind="external-shape",
                    severity=Severity.ERROR,
                    node=tensor.name,
                    op=shaped[0],
                    message=f"input {shaped[1]} of {shaped[0]} is external data, but parsers need its value while they build",
                    fix="Keep small integer tensors inline (onnx: size_threshold=1024 in convert_model_to_external_data).",
                )
            )
    return found
