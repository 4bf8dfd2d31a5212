"""What prepare says at the end: the plugin table and, where rows block, what to do about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_core.archspec import ArchSpec
from ytk_core.formats.prepare_outputs import Candidate, PluginRow

if TYPE_CHECKING:
    from ytk_client.frontend.dryrun import DryRunReport

CARVE_COLUMNS = ("REGION", "SITES", "OPERATORS", "SHAPES", "GAIA_INPUT")
NOISE_COLUMNS = ("NOISE_INPUT", "DISTRIBUTION", "DTYPE", "SHAPE", "OPERATOR", "MODULE", "LINE")
DRY_RUN_COLUMNS = ("PLUGIN", "OPERATOR", "SITES", "REASON", "MODULE", "LINE")
COLUMNS = ("PLUGIN", "HAS_PLUGIN", "PLACEHOLDER", "GAIA_INPUT")


def table_rows(rows: Sequence[PluginRow]) -> list[tuple[str, str, str, str]]:
    """Give the cells of the plugin table."""
    return [(row.name, "true" if row.has_plugin else "false", row.placeholder, row.gaia_input or "-") for row in rows]


def carve_rows(rows: Sequence[PluginRow], candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """Give the cells of the carve: the regions that selectors asked for, none if there was no selector."""
    by_op = {candidate.proposed_op: candidate for candidate in candidates}
    found: list[tuple[str, ...]] = []
    for row in rows:
        if row.selector is not None:
            each = by_op[row.placeholder]
            operators = ", ".join(f"{op.split('::')[-1]} x{count}" for op, count in sorted(each.op_inventory.items()))
            shapes = dict.fromkeys(
                "x".join(map(str, site.inputs[0].shape)) for site in each.call_site_shapes if site.inputs
            )
            found.append((row.name, str(row.sites), operators, ", ".join(shapes), row.gaia_input or "-"))
    return found


def noise_rows(described: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Give the cells of the noise inputs that ``--random-inputs`` made: what each must be fed with, and for which draw."""
    return [
        (
            each["name"],
            each["distribution"],
            each["dtype"],
            "x".join(map(str, each["shape"])) or "scalar",
            each["op"],
            each["module_path"] or "(top)",
            each["source_line"] or "-",
        )
        for each in described
    ]


def dry_run_rows(found: DryRunReport) -> list[tuple[str, ...]]:
    """Give the cells of a dry run's table: what would be carved."""
    return [
        (
            each.placeholder,
            each.op,
            str(each.sites),
            "shipped plugin"
            if each.has_plugin
            else each.reason_class + (", no plugin possible" if each.cannot_be_plugin else ""),
            each.module_path or "(top)",
            each.source_line or "-",
        )
        for each in found.carved
    ]


def dry_run_lines(found: DryRunReport) -> list[str]:
    """Say the rest of a dry run: coverage, what is rewritten, why something is carved."""
    lines = [
        f"  coverage   {found.coverage_percent:g} % of {found.operators} operators for {found.profile}, opset {found.opset}"
    ]
    lines += [f"  carve      {each.placeholder}: {each.reason}" for each in found.refused]
    lines += [
        f"  rewrite    {each.op} x{each.count} -> {', '.join(each.becomes) or 'nothing'}" for each in found.rewritten
    ]
    return [*lines, f"  supported  {', '.join(f'{op} x{count}' for op, count in found.supported.items()) or '-'}"]


def panel_title(rows: Sequence[PluginRow]) -> str:
    """Give the heading of the warning."""
    count = len(rows)
    kinds = {"unsupported operator" if row.selector is None else "selected region" for row in rows}
    what = f"{kinds.pop()}{'s' if count > 1 else ''}" if len(kinds) == 1 else "operators and regions"
    return f"{count} {what}: no engine until {'they have' if count > 1 else 'it has'} a plugin"


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
    if arch is None:
        lines += ["For a CPU engine write `-g cpu --config deployment_target=cpu` below."]
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
