"""Region specs: what a carved region takes and gives, stored inside its ``.pt2`` and readable without torch.

A ``.pt2`` is a zip. torch executes code when it loads one, so everybody but the sandboxed generator reads only this member.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.errors import FormatError
from ytk_core.formats import codec
from ytk_core.formats.plugin_meta import Extent, Role

SCHEMA_VERSION = 1
EXTRA_FILE = "ytk_region.json"
MAX_SPEC_BYTES = 4 * 1024 * 1024


class RegionTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tensor at the region's border. ``shape``: the captured extents; ``dynamic_axes``: those that may differ at run time."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: Role = Role.ACTIVATION
    dynamic_axes: tuple[int, ...] = ()


class RegionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The border and identity of a region. ``digest``: see :func:`region_digest`."""

    schema_version: int = SCHEMA_VERSION
    namespace: str
    name: str
    version: str
    inputs: tuple[RegionTensor, ...]
    outputs: tuple[RegionTensor, ...]
    aten_ops: tuple[str, ...]
    digest: str
    torch_version: str
    module_path: str = ""
    sites: int = 1
    extents: tuple[Extent, ...] = ()
    """The range of each input axis that is dynamic in the engine, not only between sites."""


def region_digest(
    *,
    ops: Sequence[str],
    inputs: Sequence[RegionTensor],
    outputs: Sequence[RegionTensor],
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> str:
    """Give the digest that tells two regions apart: operations, border types and baked-in constants, not names of tensors.

    Args:
        ops: One line per operation in topological order, operands numbered, arguments included.
        inputs: In order.
        outputs: In order.
        constants: Tensors that are part of the kernel (not those that are inputs of the node).
    """

    def border(tensors: Sequence[RegionTensor]) -> list[Any]:
        return [
            [t.dtype, [-1 if axis in t.dynamic_axes else n for axis, n in enumerate(t.shape)], t.role] for t in tensors
        ]

    values = {
        name: [array.dtype.str, list(array.shape), digest_bytes(np.asarray(array, order="C").tobytes())]
        for name, array in (constants or {}).items()
    }
    content = {"ops": list(ops), "inputs": border(inputs), "outputs": border(outputs), "constants": values}
    return digest_bytes(msgspec.json.encode(content, order="sorted"))


class GraphNode(Protocol):
    """A node of a traced graph, as ``torch.fx`` has it: what it is, and its operands, nodes among plain values."""

    name: str
    op: str
    target: Any
    args: Any
    kwargs: Any


def operation_lines(nodes: Iterable[GraphNode]) -> list[str]:
    """Give one line per operation with operands numbered: what :func:`region_digest` knows of a traced computation.

    Args:
        nodes: In topological order, placeholders and the output among them; names do not show.
    """
    numbers: dict[str, str] = {}
    lines = []
    for count, node in enumerate(nodes):
        numbers[node.name] = f"%{count}"
        if node.op in {"call_function", "output"}:
            arguments = _numbered((node.args, dict(node.kwargs)), type(node), numbers)
            lines.append(f"{numbers[node.name]} = {node.target}{arguments}")
    return lines


def _numbered(value: Any, node: type, numbers: Mapping[str, str]) -> Any:
    """Put the numbers of nodes into a nest of tuples, lists, dicts and slices."""
    if isinstance(value, node):
        return numbers[value.name]  # type: ignore[attr-defined] # of a node
    if isinstance(value, tuple):
        items = [_numbered(item, node, numbers) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_numbered(item, node, numbers) for item in value]
    if isinstance(value, dict):
        return {key: _numbered(item, node, numbers) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_numbered(item, node, numbers) for item in (value.start, value.stop, value.step)))
    return value


def encode_region_spec(spec: RegionSpec) -> str:
    """Give the text for ``torch.export.save(..., extra_files={EXTRA_FILE: text})``."""
    return codec.encode(spec).decode()


def decode_region_spec(text: bytes, origin: str) -> RegionSpec:
    """Parse a region spec.

    Raises:
        FormatError: It is not one.
    """
    spec = codec.decode(text, RegionSpec, origin, schema_version=SCHEMA_VERSION, what="region spec")
    for kind, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        if not tensors:
            msg = f"{origin}: $.{kind} is empty"
            raise FormatError(msg, hint="Carve the region again with `ytk embedded prepare`.")
        for index, tensor in enumerate(tensors):
            if any(extent < 0 for extent in tensor.shape) or any(
                not 0 <= a < len(tensor.shape) for a in tensor.dynamic_axes
            ):
                msg = f"{origin}: $.{kind}[{index}]: shape {tensor.shape} with dynamic axes {tensor.dynamic_axes} is impossible"
                raise FormatError(msg, hint="Carve the region again with `ytk embedded prepare`.")
    return spec


def read_region_spec(path: Path | str) -> RegionSpec | None:
    """Read the spec out of a ``.pt2`` without torch; None if the file has none (it was not carved by us).

    Raises:
        FormatError: The file is no ``.pt2``, or its spec is malformed.
    """
    origin = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            found = [m for m in archive.infolist() if m.filename.rpartition("/")[2] == EXTRA_FILE]
            if not found:
                return None
            if len(found) > 1 or found[0].file_size > MAX_SPEC_BYTES:
                msg = f"{origin}: {len(found)} members {EXTRA_FILE}, the first of {found[0].file_size} bytes"
                raise FormatError(msg, hint="Carve the region again with `ytk embedded prepare`.")
            with archive.open(found[0]) as stream:
                text = stream.read(MAX_SPEC_BYTES + 1)
    except FileNotFoundError as err:
        msg = f"{origin}: no such file (a region .pt2 is expected here)"
        raise FormatError(
            msg, code="no_such_file", hint="Run `ytk embedded prepare` first, or check the path."
        ) from err
    except OSError as err:
        msg = f"{origin}: cannot be read: {err.strerror}"
        raise FormatError(msg, hint="Check the path and its permissions.") from err
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as err:
        msg = f"{origin}: no .pt2, or truncated ({err})"
        raise FormatError(msg, hint="Carve the region again with `ytk embedded prepare`.") from err
    if len(text) > MAX_SPEC_BYTES:
        msg = f"{origin}: {EXTRA_FILE} is larger than it says"
        raise FormatError(msg, hint="Carve the region again with `ytk embedded prepare`.")
    return decode_region_spec(text, f"{origin}: {EXTRA_FILE}")
