"""Engine bundles: manifest, plugins, measurements; every byte is checked against the manifest, nothing is unpacked or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ytk_client.inspection.contract import arch_findings
from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, ordered
from ytk_client.inspection.request import Request
from ytk_core.formats.engine_bundle import EngineManifest, check_engine_bundle, read_json_member

_TOP_LAYERS = 20
_FIGURES = ("iterations", "min_ms", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms")


def inspect_engine(path: Path, request: Request) -> Inspection:
    """Say what really built an engine, what is in the bundle and what was measured.

    Raises:
        FormatError: Not an engine bundle, damaged, or hostile (links, paths that lead out, a zip bomb); names the member.
    """
    manifest = check_engine_bundle(path)
    members = {entry.name for entry in manifest.files}
    content: dict[str, Any] = {"manifest": manifest}
    for member in ("benchmark.json", "profile.json"):
        if member in members:
            content[member.removesuffix(".json")] = read_json_member(path, member)
    layers = _layers(content.get("profile"))
    return Inspection(
        kind="engine bundle",
        content=content | {"top_layers": layers[:_TOP_LAYERS]},
        fields=tuple(_fields(manifest)),
        tables=tuple(_tables(manifest, content, layers)),
        findings=ordered(_findings(manifest, content, layers, request)),
        target=str(request.arch or ""),
    )


def _fields(manifest: EngineManifest) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = [
        ("arch spec", manifest.arch_spec),
        ("engine", f"{manifest.engine_name} {manifest.engine_version}"),
        ("precision", manifest.precision),
        ("device", manifest.device_uid),
        ("onnx", manifest.onnx_digest),
        ("npz", manifest.npz_digest),
        ("flags", ", ".join(f"{key}={item}" for key, item in manifest.flags.items())),
    ]
    if manifest.conditions is not None:
        state = "stable" if manifest.conditions.stable else f"UNSTABLE: {manifest.conditions.reason}"
        fields.append(("measured", state))
    return fields


def _tables(manifest: EngineManifest, content: dict[str, Any], layers: list[dict[str, Any]]) -> list[Table]:
    tables = [
        Table(
            title="Plugins",
            columns=("PLUGIN", "VERSION", "SIGNED BY", "FILE", "DIGEST"),
            rows=tuple(
                (f"{p.namespace}::{p.name}{p.mark}", p.version, p.signed_by or "no trusted key", p.file, p.digest)
                for p in manifest.plugins
            ),
        ),
        Table(
            title="Files",
            columns=("NAME", "BYTES", "DIGEST"),
            rows=tuple((f.name, f.size_bytes, f.digest) for f in manifest.files),
        ),
    ]
    row = _benchmark(content)
    if names := tuple(name for name in _FIGURES if name in row):
        tables.append(Table(title="Benchmark", columns=names, rows=(tuple(short(row[name]) for name in names),)))
    total = sum(layer["ms"] for layer in layers)
    rows: tuple[tuple[object, ...], ...] = tuple(
        (
            layer.get("name"),
            layer.get("type"),
            short(layer["ms"]),
            f"{100 * layer['ms'] / total:.1f}" if total else None,
            layer.get("exec_type") or None,
        )
        for layer in layers[:_TOP_LAYERS]
    )
    title = f"Layers ({len(rows)} slowest of {len(layers)})"
    return [*tables, Table(title=title, columns=("LAYER", "TYPE", "MS", "%", "KERNEL"), rows=rows)]


def _benchmark(content: dict[str, Any]) -> dict[str, Any]:
    row = content.get("benchmark")
    row = row.get("row", row) if isinstance(row, dict) else {}
    return row if isinstance(row, dict) else {}


def _layers(profile: Any) -> list[dict[str, Any]]:
    """Give the timed layers, slowest first, as far as the member has the fields we know."""
    layers = profile.get("layers") if isinstance(profile, dict) else profile
    if not isinstance(layers, list):
        return []
    timed = [layer for layer in layers if isinstance(layer, dict) and _is_time(layer.get("ms"))]
    return sorted(timed, key=lambda layer: -layer["ms"])


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(figure: Any) -> object:
    """Give a figure with four digits; anything else as it is."""
    return f"{figure:.4g}" if isinstance(figure, float) else figure


def _findings(
    manifest: EngineManifest, content: dict[str, Any], layers: list[dict[str, Any]], request: Request
) -> list[Finding]:
    fix = f"Build it for this target: ytk embedded compile -a {request.arch} ..."
    found = arch_findings(manifest.arch_spec, request, "engine", fix)
    if manifest.conditions is not None and not manifest.conditions.stable:
        found.append(
            Finding(
                kind="unstable",
                severity=Severity.WARNING,
                message=f"the conditions drifted while it was measured: {manifest.conditions.reason}",
                fix="Measure again on an idle, cool device before you quote these times.",
            )
        )
    if not any(entry.name.startswith("engine/") for entry in manifest.files):
        found.append(
            Finding(
                kind="no-engine",
                severity=Severity.ERROR,
                message="the bundle has no member below engine/, so there is nothing to run",
                fix="Build it again with `ytk embedded compile`.",
            )
        )
    if not _benchmark(content) and not layers:
        found.append(
            Finding(
                kind="not-measured",
                severity=Severity.NOTE,
                message="nothing was measured: no benchmark.json and no profile.json",
                fix="`ytk embedded compile` measures after building.",
            )
        )
    return found
