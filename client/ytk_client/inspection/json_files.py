"""JSON files of the toolkit, told apart by their content: plugins.json, candidates.json, fx_nodes.json, a plugin manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ytk_client.inspection.contract import contract_fields, contract_tables
from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, ordered
from ytk_client.inspection.request import Request
from ytk_core.errors import FormatError
from ytk_core.formats import codec
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.formats.prepare_outputs import (
    Candidate,
    CandidateReason,
    PluginRow,
    read_candidates,
    read_fx_nodes,
    read_plugins,
)


def inspect_json(path: Path, request: Request) -> Inspection:
    """Say what a JSON file of the toolkit holds.

    Raises:
        FormatError: It is damaged, or none of ours.
    """
    raw = codec.parse_json(codec.read_bytes(path, "JSON file"), str(path))
    if isinstance(raw, list) and raw and all(isinstance(entry, dict) and "proposed_op" in entry for entry in raw):
        return _candidates(path, read_candidates(path))
    keys = set(raw) if isinstance(raw, dict) else set()
    if "rows" in keys:
        return _plugins(path, read_plugins(path))
    if "nodes" in keys and "schema_version" in keys:
        return _fx_nodes(path)
    if {"so_digest", "meta"} <= keys:
        return _manifest(path, request)
    if raw == []:
        return Inspection(kind="candidates", content=[], fields=(("candidates", 0),))
    what = f"an object with the keys {', '.join(sorted(keys)[:6])}" if keys else f"a {type(raw).__name__}"
    raise FormatError(
        f"{path}: JSON, but no file of the toolkit: {what}",
        code="unknown_file",
        hint="Known: plugins.json, candidates.json, fx_nodes.json, a plugin's .manifest.json.",
    )


def _plugins(path: Path, rows: Sequence[PluginRow]) -> Inspection:
    found = []
    for row in rows:
        if not row.has_plugin:
            found.append(
                Finding(
                    kind="plugin-missing",
                    severity=Severity.WARNING,
                    node=row.placeholder,
                    message=f"{row.sites} site(s) of the model have no plugin yet",
                    fix=f"ytk kernelgen compile -r {row.gaia_input or '<region>.pt2'} ..., then ytk embedded build-plugin",
                )
            )
        if row.gaia_input and not (path.parent / row.gaia_input).is_file():
            found.append(
                Finding(
                    kind="file-missing",
                    severity=Severity.ERROR,
                    node=row.placeholder,
                    message=f"its region {row.gaia_input} is not beside this file",
                    fix="Copy the whole output of `ytk embedded prepare`, or prepare the model again.",
                )
            )
    table: tuple[tuple[object, ...], ...] = tuple(
        (row.placeholder, "yes" if row.has_plugin else "no", row.sites, row.gaia_input, row.selector) for row in rows
    )
    columns = ("PLACEHOLDER", "HAS PLUGIN", "SITES", "REGION", "SELECTOR")
    return Inspection(
        kind="plugins",
        content=rows,
        fields=(("placeholders", len(rows)),),
        tables=(Table(title="Plugins", columns=columns, rows=table),),
        findings=ordered(found),
    )


_WHY = {
    CandidateReason.EXPORT_UNSUPPORTED: "the exporter has no translation",
    CandidateReason.TARGET_ILLEGAL: "the target does not take it",
    CandidateReason.RANK: "the target takes lower ranks only",
    CandidateReason.DTYPE: "the target takes other element types only",
    CandidateReason.MISPARSE: "the target would compute something else, without a word",
    CandidateReason.NUMERICS: "the exported graph computes something else than torch",
    CandidateReason.SELECTOR: "asked for with --plugin",
}


def _candidates(path: Path, candidates: Sequence[Candidate]) -> Inspection:
    found = []
    for candidate in candidates:
        if candidate.cannot_be_plugin:
            found.append(
                Finding(
                    kind="cannot-be-plugin",
                    severity=Severity.ERROR,
                    node=candidate.proposed_op,
                    op=candidate.aten_op,
                    module_path=candidate.module_path,
                    message=candidate.cannot_be_plugin,
                    fix="Rewrite this part of the model, or carve a larger region whose outputs have known shapes.",
                    rule=candidate.rule or "",
                )
            )
        elif candidate.gaia_input and not (path.parent / Path(candidate.gaia_input).name).is_file():
            found.append(
                Finding(
                    kind="file-missing",
                    severity=Severity.ERROR,
                    node=candidate.proposed_op,
                    message=f"its region {Path(candidate.gaia_input).name} is not beside this file",
                    fix="Copy the whole plugin_candidates directory, or prepare the model again.",
                )
            )
    rows: tuple[tuple[object, ...], ...] = tuple(
        (
            candidate.proposed_op,
            candidate.aten_op,
            _WHY[candidate.reason],
            candidate.module_path or "(top)",
            len(candidate.call_site_shapes),
            candidate.rule or candidate.unsupported_reason,
            candidate.source_line,
        )
        for candidate in candidates
    )
    columns = ("REGION", "OPERATOR", "WHY", "MODULE", "SITES", "RULE", "SOURCE LINE")
    return Inspection(
        kind="candidates",
        content=candidates,
        fields=(
            ("candidates", len(candidates)),
            ("reasons", ", ".join(f"{reason} {n}" for reason, n in Counter(c.reason for c in candidates).items())),
        ),
        tables=(Table(title="Candidates", columns=columns, rows=rows),),
        findings=ordered(found),
    )


def _fx_nodes(path: Path) -> Inspection:
    nodes = read_fx_nodes(path)
    calls = [node for node in nodes if node.op == "call_function"]
    counts = Counter(node.target for node in calls)
    rows: tuple[tuple[object, ...], ...] = tuple(counts.most_common(30))
    lost = [node.name for node in calls if not node.onnx_nodes and node.region is None]
    return Inspection(
        kind="fx nodes",
        content={"nodes": len(nodes), "targets": dict(counts.most_common()), "without_onnx_node": lost},
        fields=(
            ("nodes", len(nodes)),
            ("carved", sum(node.region is not None for node in nodes)),
            ("folded or fused away", len(lost)),
        ),
        tables=(Table(title="Operators", columns=("OPERATOR", "COUNT"), rows=rows),),
    )


def _manifest(path: Path, request: Request) -> Inspection:
    del request  # what counts is the .so beside it
    manifest = read_plugin_manifest(path)
    found = [
        Finding(
            kind=f"check-{check.name}",
            severity=Severity.ERROR,
            message=f"the audit failed: found {check.found}, wanted {check.wanted}",
            fix=check.fix or "Build the plugin again with `ytk embedded build-plugin`.",
        )
        for check in manifest.checks
        if not check.ok
    ]
    return Inspection(
        kind="plugin manifest",
        content={"manifest": manifest},
        fields=(("arch spec", manifest.arch_spec), ("toolchain", manifest.toolchain), *contract_fields(manifest.meta)),
        tables=tuple(contract_tables(manifest.meta)),
        findings=ordered(found),
    )
