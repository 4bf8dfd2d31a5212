"""Kernel bundles: parsed as literals, never executed."""

from __future__ import annotations

from pathlib import Path

from ytk_client.inspection.contract import contract_fields, contract_findings, contract_tables
from ytk_client.inspection.findings import Inspection, ordered
from ytk_client.inspection.request import Request
from ytk_core.formats.kernel_bundle import bundle_digest, read_bundle


def inspect_kernel(path: Path, request: Request) -> Inspection:
    """Say what a kernel bundle promises, and whether it is for the target.

    Raises:
        FormatError: It is not a kernel bundle, or its contract contradicts itself.
    """
    bundle = read_bundle(path)
    digest = bundle_digest(bundle)
    lines = len(bundle.source.splitlines()) + len(bundle.header.splitlines())
    return Inspection(
        kind="kernel bundle",
        content={"meta": bundle.meta, "digest": digest, "source_lines": lines},
        fields=(*contract_fields(bundle.meta), ("source", f"{lines} lines"), ("digest", digest)),
        tables=tuple(contract_tables(bundle.meta)),
        findings=ordered(contract_findings(bundle.meta, request)),
        target=str(request.arch or ""),
    )
