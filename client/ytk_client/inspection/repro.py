"""Repros: what was captured, with which versions; its Python is shown to be there and never run."""

from __future__ import annotations

from pathlib import Path

from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, dims_text
from ytk_client.repro.format import Loaded, read_repro


def inspect_repro(path: Path) -> Inspection:
    """Say what a repro holds.

    Raises:
        FormatError: It is damaged or hostile.
    """
    loaded = read_repro(path)
    repro = loaded.repro
    rows: tuple[tuple[object, ...], ...] = tuple(
        (side, tensor.name, tensor.dtype, dims_text(tensor.shape))
        for side, tensors in (("in", repro.inputs), ("out", repro.outputs), ("state", repro.state))
        for tensor in tensors
    )
    expected = f"{repro.raised.type}: {repro.raised.message}" if repro.raised else f"{len(repro.outputs)} outputs"
    return Inspection(
        kind="repro",
        content={
            "repro": repro,
            "sources": {name: len(text.splitlines()) for name, text in loaded.sources.items()},
        },
        fields=(
            ("captured", f"{repro.kind} {repro.name or '(top)'}"),
            ("expected", expected),
            ("versions", ", ".join(f"{name} {version}" for name, version in repro.versions.items())),
            ("sources", ", ".join(loaded.sources)),
            *((key, value) for key, value in repro.origin.items() if isinstance(value, str) and value),
        ),
        tables=(Table(title="Tensors", columns=("", "NAME", "DTYPE", "SHAPE"), rows=rows),),
        findings=tuple(_findings(loaded)),
    )


def _findings(loaded: Loaded) -> list[Finding]:
    """Say what else is in it, for whoever is about to publish it."""
    size = sum(loaded.arrays[f"state/{tensor.name}"].nbytes for tensor in loaded.repro.state)
    if not size:
        return []
    return [
        Finding(
            kind="parameters",
            severity=Severity.NOTE,
            message=f"it holds {size} bytes of the module's parameters, and the text of {len(loaded.sources)} source file(s)",
            fix="Read both before you publish it.",
        )
    ]
