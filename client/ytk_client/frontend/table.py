"""What prepare says at the end: the plugin table and, where rows block, what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.formats.prepare_outputs import Candidate, PluginRow

COLUMNS = ("PLUGIN", "HAS_PLUGIN", "PLACEHOLDER", "GAIA_INPUT")


def table_rows(rows: Sequence[PluginRow]) -> list[tuple[str, str, str, str]]:
    """Give the cells of the plugin table."""
    return [(row.name, "true" if row.has_plugin else "false", row.placeholder, row.gaia_input or "-") for row in rows]


def panel_title(rows: Sequence[PluginRow]) -> str:
    """Give the heading of the warning."""
    count = len(rows)
    return f"{count} unsupported operator{'s' if count > 1 else ''}: no engine until {'they have' if count > 1 else 'it has'} a plugin"


def panel_lines(
    rows: Sequence[PluginRow],
    candidates: Sequence[Candidate],
    *,
    onnx: Path,
    npz: Path,
    reference: Path,
    arch: str | None,
) -> list[str]:
    """Say which rows block, why, and give every next command with its paths filled in.

    Args:
        rows: The rows without a plugin.
        candidates: Their diagnoses, in the same order.
        onnx: As written.
        npz: As written.
        reference: As written.
        arch: The arch spec asked for; None leaves a blank to fill in.
    """
    folder = onnx.parent
    spec = arch or '"$ARCH"'
    lines = ["The export is complete, but the engine builder has nothing to put in the place of:", ""]
    for row, candidate in zip(rows, candidates, strict=True):
        sites = f"{row.sites} node{'s' if row.sites > 1 else ''}"
        lines += [f"  {row.placeholder}  {sites}, from {candidate.module_path or '(top)'} ({candidate.aten_op})"]
        lines += [f"    {candidate.unsupported_reason}"]
        if candidate.cannot_be_plugin:
            lines += [f"    It cannot become a plugin: {candidate.cannot_be_plugin}. Change the model there."]
    buildable = [(row, each) for row, each in zip(rows, candidates, strict=True) if not each.cannot_be_plugin]
    if not buildable:
        return lines
    if arch is None:
        lines += ["", "Choose a target, `ytk embedded workers` lists them:", "  export ARCH=<arch spec>"]
    if not _is_cpu(arch):
        lines += [
            "Choose where to score kernels, `ytk eval workers` lists them:",
            "  export GPU=<gpu of the same kind>",
        ]
    for row, _ in buildable:
        lines += ["", f"{row.name}: generate the kernel, then build the plugin"]
        lines += _command_lines(row, folder, spec, arch)
    plugins = [f"    --custom-plugin {folder / 'plugins' / (row.name + '.so')}" for row, _ in buildable]
    last = len(plugins) - 1
    lines += [
        "",
        "Then build the engine and check it against torch:",
        f"  ytk embedded compile -a {spec} -p fp32 \\",
        f"    --onnx {onnx} --npz {npz} -o {onnx.with_suffix('.tgz')} \\",
        *(line + (" \\" if index < last else "") for index, line in enumerate(plugins)),
        f"  ytk embedded verify {reference} {onnx.with_suffix('.tgz')}",
    ]
    return lines


def _is_cpu(arch: str | None) -> bool:
    return arch is not None and ArchSpec.parse(arch).device_kind == "cpu"


def _command_lines(row: PluginRow, folder: Path, spec: str, arch: str | None) -> list[str]:
    source = folder / "sources" / f"{row.name}.module_source.py"
    namespace = [] if row.namespace == "yasp" else [f"--plugin-namespace {row.namespace}"]
    # Without a target the strictest one is assumed, which is a TensorRT.
    place, target = ("cpu", "cpu") if _is_cpu(arch) else ('"$GPU"', "tensorrt")
    generate = [f"-r {folder / (row.gaia_input or '')}", f"-g {place}", f"--config deployment_target={target}"]
    return [
        f"  mkdir -p {source.parent} {folder / 'plugins'}",
        "  ytk kernelgen compile \\",
        f"    {' '.join(generate)} \\",
        f"    -o {source} \\",
        f"    --report {source.parent / (row.name + '.report.json')}",
        f"  ytk embedded build-plugin -a {spec} --plugin-name {row.name} \\",
        f"    {' '.join([*namespace, '-s', str(source)])} \\",
        f"    -o {folder / 'plugins' / (row.name + '.so')}",
    ]
