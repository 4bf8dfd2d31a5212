"""What ``prepare`` writes beside the ONNX: ``plugins.json``, ``plugin_candidates/candidates.json`` and ``fx_nodes.json``.

``candidates.json`` is a list (scripts iterate it), so each entry carries the schema version; the others are objects.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.dtypes import DType
from ytk_core.errors import FormatError
from ytk_core.formats import codec
from ytk_core.formats.plugin_meta import ConstantAxis, Extent, Role

SCHEMA_VERSION = 1
_HINT = "Make it again with `ytk embedded prepare`."


class CandidateReason(enum.StrEnum):
    """Why a region was carved; a closed list, scripts branch on it."""

    EXPORT_UNSUPPORTED = "onnx_export_unsupported_op"
    """The exporter refused the operator."""
    TARGET_ILLEGAL = "target_illegal_op"
    """The target profile does not have the operator, or refuses these attributes."""
    RANK = "rank"
    """The target accepts the operator only in a lower rank."""
    DTYPE = "dtype"
    """The target accepts the operator only in other element types."""
    MISPARSE = "misparse"
    """The target would accept the node and compute something else."""
    NUMERICS = "numerics"
    """The exported graph computes something else than torch."""
    SELECTOR = "selector"
    """The user asked for it with ``--plugin``."""


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class PluginRow(_Struct, frozen=True, kw_only=True):
    """One line of the plugin table. ``placeholder``: ``<namespace>::<Name>``; ``gaia_input``: a path relative to plugins.json."""

    name: str
    has_plugin: bool
    placeholder: str
    gaia_input: str | None
    sites: int
    namespace: str
    version: str
    selector: str | None = None


class NodeInput(_Struct, frozen=True, kw_only=True):
    """One input of the placeholder, in order: a generated kernel must take exactly these."""

    name: str
    dtype: DType
    rank: int
    role: Role = Role.ACTIVATION


class TensorShape(_Struct, frozen=True, kw_only=True):
    """Dtype and captured shape; a string in ``shape`` names a dynamic extent."""

    dtype: DType
    shape: tuple[int | str, ...]


class CallSite(_Struct, frozen=True, kw_only=True):
    """One place where the region occurs. ``node``: the placeholder node's name in the ONNX."""

    node: str
    module_path: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]


class Candidate(_Struct, frozen=True, kw_only=True):
    """The diagnosis of one region. ``unsupported_reason``: the exporter's or the profile's own words; ``rule``: the profile's rule."""

    schema_version: int = SCHEMA_VERSION
    proposed_op: str
    namespace: str
    aten_op: str
    reason: CandidateReason
    unsupported_reason: str
    module_path: str
    module_class: str
    source_line: str
    node_inputs: tuple[NodeInput, ...]
    call_site_shapes: tuple[CallSite, ...]
    region_digest: str
    rule: str | None = None
    parameters: dict[str, Any] = {}
    constant_axes: tuple[ConstantAxis, ...] = ()
    extents: tuple[Extent, ...] = ()
    """The range of each input axis that ``--dynamic`` made dynamic; ``call_site_shapes`` has the usual extent."""
    op_inventory: dict[str, int] = {}
    gaia_input: str | None = None
    cannot_be_plugin: str | None = None
    """Why no plugin can ever stand here (for example a data-dependent output shape); None where one can."""


class FxNode(_Struct, frozen=True, kw_only=True):
    """One node of the exported program, with where it comes from and what it became."""

    name: str
    op: str
    target: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[TensorShape, ...] = ()
    module_path: str = ""
    module_class: str = ""
    source_file: str = ""
    source_line: int | None = None
    region: str | None = None
    """``<namespace>::<Name>`` of the region it was carved into."""
    onnx_nodes: tuple[str, ...] = ()


class _Plugins(_Struct, frozen=True, kw_only=True):
    schema_version: int
    rows: tuple[PluginRow, ...]


class _FxNodes(_Struct, frozen=True, kw_only=True):
    schema_version: int
    nodes: tuple[FxNode, ...]


def _unique(names: Sequence[str], what: str, origin: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            msg = f"{origin}: the {what} {name!r} occurs twice"
            raise FormatError(msg, hint=_HINT)
        seen.add(name)


def _check_rows(rows: Sequence[PluginRow], origin: str) -> None:
    _unique([row.placeholder for row in rows], "placeholder", origin)
    for index, row in enumerate(rows):
        if row.placeholder != f"{row.namespace}::{row.name}":
            msg = f"{origin}: $.rows[{index}].placeholder is {row.placeholder!r}, not {row.namespace}::{row.name}"
            raise FormatError(msg, hint=_HINT)
        if row.gaia_input and (row.gaia_input.startswith("/") or ".." in Path(row.gaia_input).parts):
            msg = f"{origin}: $.rows[{index}].gaia_input is {row.gaia_input!r}; it must lie below the directory of the file"
            raise FormatError(msg, hint=_HINT)
        if row.sites < 1:
            msg = f"{origin}: $.rows[{index}].sites is {row.sites}"
            raise FormatError(msg, hint=_HINT)


def write_plugins(path: Path | str, rows: Sequence[PluginRow]) -> None:
    """Write ``plugins.json``.

    Raises:
        FormatError: Two rows have one placeholder, or a row contradicts itself.
        BoardError: ``disk_full``.
    """
    _check_rows(rows, str(path))
    codec.write_json(path, _Plugins(schema_version=SCHEMA_VERSION, rows=tuple(rows)))


def read_plugins(path: Path | str) -> tuple[PluginRow, ...]:
    """Read ``plugins.json``.

    Raises:
        FormatError: It is not one.
    """
    text = codec.read_bytes(path, "plugins.json")
    found = codec.decode(text, _Plugins, str(path), schema_version=SCHEMA_VERSION, what="plugins.json")
    _check_rows(found.rows, str(path))
    return found.rows


def write_candidates(path: Path | str, candidates: Sequence[Candidate]) -> None:
    """Write ``candidates.json``.

    Raises:
        FormatError: Two candidates propose one operator.
        BoardError: ``disk_full``.
    """
    _unique([candidate.proposed_op for candidate in candidates], "proposed_op", str(path))
    codec.write_json(path, tuple(candidates))


def read_candidates(path: Path | str) -> tuple[Candidate, ...]:
    """Read ``candidates.json``.

    Raises:
        FormatError: It is not one.
    """
    raw = codec.parse_json(codec.read_bytes(path, "candidates.json"), str(path))
    if not isinstance(raw, list):
        msg = f"{path}: candidates.json is a list, not {type(raw).__name__}"
        raise FormatError(msg, hint=_HINT)
    for index, entry in enumerate(raw):
        codec.check_schema_version(entry, SCHEMA_VERSION, f"{path}: $[{index}]", "candidate")
    found = codec.convert(raw, tuple[Candidate, ...], str(path))
    _unique([candidate.proposed_op for candidate in found], "proposed_op", str(path))
    return found


def write_fx_nodes(path: Path | str, nodes: Sequence[FxNode]) -> None:
    """Write ``fx_nodes.json``.

    Raises:
        FormatError: Two nodes have one name.
        BoardError: ``disk_full``.
    """
    _unique([node.name for node in nodes], "node", str(path))
    codec.write_json(path, _FxNodes(schema_version=SCHEMA_VERSION, nodes=tuple(nodes)))


def read_fx_nodes(path: Path | str) -> tuple[FxNode, ...]:
    """Read ``fx_nodes.json``.

    Raises:
        FormatError: It is not one.
    """
    text = codec.read_bytes(path, "fx_nodes.json")
    found = codec.decode(text, _FxNodes, str(path), schema_version=SCHEMA_VERSION, what="fx_nodes.json")
    _unique([node.name for node in found.nodes], "node", str(path))
    return found.nodes
