"""What an inspection gives: findings, facts and tables, as values that JSON and a terminal both take."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

SCHEMA_VERSION = 1


class Severity(enum.StrEnum):
    """How bad a finding is; notes do not count in the verdict."""

    ERROR = "error"
    """The target refuses the file, or computes something else."""
    WARNING = "warning"
    """It may: what the file says is not enough to exclude it."""
    NOTE = "note"
    """Worth knowing, nothing to mend."""


_ORDER = list(Severity)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One objection.

    Attributes:
        kind: A stable word: ``misparse``, ``int64``, ``missing-op``, ...
        severity: Whether it counts.
        message: What is so, with the value.
        fix: What to do about it.
        node: Name of the graph node or tensor.
        op: Operator of the node.
        module_path: The module it came from, where the exporter recorded it.
        source_line: ``file:line`` of the model's code, where the exporter recorded it.
        rule: The target profile's rule, in its words.
        rule_id: The rule's id.
        source: Where the rule comes from.
    """

    kind: str
    severity: Severity
    message: str
    fix: str
    node: str = ""
    op: str = ""
    module_path: str = ""
    source_line: str = ""
    rule: str = ""
    rule_id: str = ""
    source: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table for people; JSON has the same facts in ``content``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is. ``fields`` and ``tables`` are for people, ``content`` for programs."""

    kind: str
    content: Any
    fields: tuple[tuple[str, object], ...] = ()
    tables: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    target: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that counts."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each severity."""
        return {str(level): sum(f.severity is level for f in self.findings) for level in Severity}


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Put the worst first; what is equally bad stays in the order of the file."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))


def dims_text(dims: tuple[object, ...] | list[object] | None) -> str:
    """Give ``1x3x?`` for dims, ``scalar`` for none of them, ``?`` where even the rank is unknown."""
    if dims is None:
        return "?"
    return "x".join("?" if dim is None else str(dim) for dim in dims) or "scalar"
