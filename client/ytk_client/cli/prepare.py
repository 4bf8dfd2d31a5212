"""``ytk embedded prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_client.cli.output import JSON, console, format_option, note, print_json, print_table, warn
from ytk_core.errors import ExitCode

if TYPE_CHECKING:
    from ytk_client.frontend import PrepareReport
    from ytk_client.frontend.dryrun import DryRunReport

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--onnx-out", type=_FILE, help="The graph; needed unless --dryrun.")
@click.option("--npz-out", type=_FILE, help="The weights, beside the graph.  [default: the graph's name with .npz]")
@click.option(
    "--reference-out", type=_FILE, help="Inputs and torch's outputs.  [default: the graph's name with .reference.npz]"
)
@click.option("-a", "--arch", help="Export for this arch spec; default is the strictest target, TensorRT 8.6.")
@click.option(
    "--target-profile",
    "profile",
    help="Export for this target profile (trt86, trt1015, openvino, onnxruntime) instead.",
)
@click.option(
    "--namespace", default="yasp", show_default=True, help="Namespace of the plugins that take carved operators."
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="SELECTOR",
    help="Carve a region: NAMESPACE::NAME=BLOCK[:around][@where=GLOBS][@lift=HOW][@nojoin].",
)
@click.option(
    "--dynamic", multiple=True, metavar="INPUT:AXIS=MIN,OPT,MAX", help="Let an axis of an input differ at run time."
)
@click.option(
    "--random-inputs",
    is_flag=True,
    help="Make the noise of random draws inputs of the graph, which is then deterministic.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Reference inputs: get_fwd_args() and variations.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the variations.")
@click.option(
    "--torch-timing-budget",
    type=click.FloatRange(0.01),
    default=2.0,
    show_default=True,
    help="Seconds to time torch for.",
)
@click.option("--no-torch-timing", is_flag=True, help="Leave the torch row out of the reference.")
@click.option(
    "--debug-taps", is_flag=True, help="Also write a graph that gives out what enters and leaves each plugin."
)
@click.option("--dryrun", is_flag=True, help="Only say what would be carved and rewritten.")
@click.option(
    "--min-coverage",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Of a --dryrun: exit with 1 where the target takes less of the model without a plugin.",
)
@click.option("--report", type=_FILE, help="Write the report of a --dryrun as JSON.")
@format_option("-o", "--output", "--format")
def prepare(
    model: Path,
    onnx_out: Path | None,
    npz_out: Path | None,
    reference_out: Path | None,
    arch: str | None,
    profile: str | None,
    namespace: str,
    plugins: tuple[str, ...],
    dynamic: tuple[str, ...],
    random_inputs: bool,
    samples: int,
    seed: int,
    torch_timing_budget: float,
    no_torch_timing: bool,
    debug_taps: bool,
    dryrun: bool,
    min_coverage: float | None,
    report: Path | None,
    output: str,
) -> None:
    """Export a PyTorch model; carve what the target refuses into plugins.

    MODEL is a Python file with a class `Model` and a function `get_fwd_args()`. It is run here and nowhere else.
    """
    from ytk_client.frontend import PrepareRequest, dry_run
    from ytk_client.frontend import prepare as run

    if arch and profile:
        raise click.UsageError("-a and --target-profile exclude each other: an arch spec implies its profile.")
    if min_coverage is not None and not dryrun:
        raise click.UsageError("--min-coverage is for --dryrun; a real run is content with plugins.")
    if report is not None and not dryrun:
        raise click.UsageError("--report is for --dryrun; a real run writes candidates.json.")
    if onnx_out is None:
        if not dryrun:
            raise click.UsageError("Missing option '--onnx-out'.")
        onnx_out = model.with_suffix(".onnx")
    request = PrepareRequest(
        model=model,
        onnx_out=onnx_out,
        npz_out=npz_out or onnx_out.with_suffix(".npz"),
        reference_out=reference_out or onnx_out.with_suffix(".reference.npz"),
        arch=arch,
        profile=profile,
        namespace=namespace,
        plugins=plugins,
        dynamic=dynamic,
        debug_taps=debug_taps,
        random_inputs=random_inputs,
        samples=samples,
        seed=seed,
        torch_timing_budget_s=0.0 if no_torch_timing else torch_timing_budget,
    )
    if dryrun:
        found = dry_run(request, on_phase=note)
        _print_dry_run(found, report, output)
        if min_coverage is not None and found.coverage_percent < min_coverage:
            warn(
                f"{found.coverage_percent:g} % of the operators need no plugin, and --min-coverage is {min_coverage:g}"
            )
            raise click.exceptions.Exit(int(ExitCode.VERDICT))
        return
    done = run(request, on_phase=note)
    for text in done.notes:
        warn(text)
    if output == JSON:
        print_json(_as_json(done))
    else:
        _print(request.arch, request.onnx_out, request.npz_out, request.reference_out, done)


def _print_dry_run(found: DryRunReport, report: Path | None, output: str) -> None:
    from ytk_client.frontend import table

    if report is not None:
        from ytk_core.formats import codec

        codec.write_json(report, found)
        note(f"  wrote      {report}")
    for text in found.notes:
        warn(text)
    if output == JSON:
        print_json(found)
        return
    print_table(table.DRY_RUN_COLUMNS, table.dry_run_rows(found), empty="nothing would be carved")
    for line in table.dry_run_lines(found):
        note(line)


def _as_json(report: PrepareReport) -> dict[str, object]:
    return {
        "rows": report.rows,
        "candidates": report.candidates,
        "written": [str(path) for path in report.written],
        "profile": report.profile,
        "opset": report.opset,
        "evaluator": report.evaluator,
        "accuracy": report.accuracy,
        "notes": report.notes,
        "random_inputs": report.random_inputs,
        "seconds": report.seconds,
    }


def _print(arch: str | None, onnx: Path, npz: Path, reference: Path, report: PrepareReport) -> None:
    """Print the table to stdout, all else to stderr."""
    from ytk_client.frontend import table

    for path in report.written:
        note(f"  wrote      {path}")
    worst = max((verdict.max_abs or 0.0 for verdict in report.accuracy), default=0.0)
    note(
        f"  compared   {len(report.accuracy)} tensors with torch in {report.evaluator}: largest difference {worst:.2g}"
    )
    print_table(
        table.COLUMNS, table.table_rows(report.rows), empty=f"no plugin needed: {report.profile} takes every operator"
    )
    if report.random_inputs:
        print_table(table.NOISE_COLUMNS, table.noise_rows(report.random_inputs))
    carve = table.carve_rows(report.rows, report.candidates)
    if carve:
        print_table(table.CARVE_COLUMNS, carve)
    if not report.blocking:
        return
    from rich.panel import Panel
    from rich.text import Text

    by_op = {candidate.proposed_op: candidate for candidate in report.candidates}
    lines = table.panel_lines(
        report.blocking,
        [by_op[row.placeholder] for row in report.blocking],
        onnx=onnx,
        npz=npz,
        reference=reference,
        arch=arch,
    )
    # Commands are there to be copied: they are not wrapped, whatever the width.
    panel = Panel(
        Text("\n".join(lines), no_wrap=True),
        title=table.panel_title(report.blocking),
        border_style="yellow",
        expand=False,
    )
    console(stderr=True).print(panel, crop=False)
