"""``ytk embedded verify``: run engine bundles on their target, time them, compare them with torch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.follow import check_ended, detached, follow_job, follow_options, output_blob, submit_job
from ytk_client.cli.output import JSON, format_option, note, print_json, print_table, warn
from ytk_core.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ytk_client.api import Client, Submitted
    from ytk_core.formats.benchmark import BenchmarkRow
    from ytk_core.formats.reference import Reference
    from ytk_core.formats.verify_report import OutputAccuracy, PluginUse, VerifyReport
    from ytk_core.jobs import JobSpec


class _Verified(NamedTuple):
    label: str
    report: VerifyReport


@click.command()
@click.argument("reference", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument(
    "bundles",
    nargs=-1,
    required=True,
    metavar="BUNDLE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--iterations", type=click.IntRange(1), default=50, show_default=True, help="Timed runs.")
@click.option("--warmup", type=click.IntRange(0), default=10, show_default=True, help="Runs before the timed ones.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0 leaves it to the worker.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance, instead of the dtype's default.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance, instead of the dtype's default.")
@click.option("--no-cache", is_flag=True, help="Measure anew even if this was measured before.")
@format_option()
@follow_options
@connection_options
@click.pass_context
def verify(
    context: click.Context,
    reference: Path,
    bundles: tuple[Path, ...],
    iterations: int,
    warmup: int,
    threads: int,
    rtol: float | None,
    atol: float | None,
    no_cache: bool,
    output: str,
    detach: bool,
    quiet: bool,
    controller: str | None,
    api_key_file: str | None,
) -> None:
    """Run engine bundles on the target and compare with torch.

    REFERENCE is what `prepare --reference-out` wrote, each BUNDLE what `compile -o` wrote. Exit code 1 if an output
    differs by more than its tolerance, or a plugin was not used.
    """
    from ytk_core.formats.engine_bundle import read_manifest
    from ytk_core.formats.reference import read_reference
    from ytk_core.jobs import EngineVerifyParams

    wanted = read_reference(reference)
    params = EngineVerifyParams(iterations=iterations, warmup=warmup, threads=threads, rtol=rtol, atol=atol)
    specs = [_spec(read_manifest(bundle).arch_spec, params, no_cache=no_cache) for bundle in bundles]
    for bundle in bundles:
        _check_whole(bundle)
    with open_client(controller, api_key_file) as client:
        jobs = [
            submit_job(client, spec, {"engine.tgz": bundle, "reference.npz": reference})
            for spec, bundle in zip(specs, bundles, strict=True)
        ]
        if detach:
            for submitted in jobs:
                detached(submitted)
            return
        verified = [
            _Verified(label, _report(client, submitted, quiet=quiet))
            for label, submitted in zip(_labels(bundles), jobs, strict=True)
        ]
    ok = all(entry.report.ok for entry in verified)
    if output == JSON:
        print_json(
            {
                "ok": ok,
                "torch_benchmark": wanted.torch_benchmark,
                "bundles": [
                    {"bundle": entry.label, "ok": entry.report.ok, "report": entry.report} for entry in verified
                ],
            }
        )
    else:
        _print(wanted, verified)
    if not ok:
        context.exit(int(ExitCode.VERDICT))


def _spec(arch: str, params: object, *, no_cache: bool) -> JobSpec:
    import msgspec

    from ytk_core.jobs import JobKind, JobSpec

    return JobSpec(
        kind=JobKind.ENGINE_VERIFY,
        arch_spec=arch,
        params=msgspec.to_builtins(params),
        wall_limit_s=1800.0,
        measuring=True,
        no_cache=no_cache,
    )


def _check_whole(bundle: Path) -> None:
    """Read a bundle to its end, so that a copy that was cut short does not travel to the board.

    Raises:
        FormatError: Code ``bad_engine_bundle``.
    """
    import gzip
    import zlib

    from ytk_core.errors import FormatError
    from ytk_core.formats.engine_bundle import Limits

    left = Limits().max_bytes
    try:
        with gzip.open(bundle) as stream:
            while block := stream.read(1 << 20):
                left -= len(block)
                if left < 0:
                    return  # too large in any case: the worker says so with the limit
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise FormatError(
            f"{bundle}: damaged or cut short: {err}",
            code="bad_engine_bundle",
            hint="Copy the bundle again, or build it again with `ytk embedded compile`.",
        ) from err


def _labels(bundles: Sequence[Path]) -> list[str]:
    """Name the rows: by file name, or by path where two have one name."""
    stems = [bundle.stem for bundle in bundles]
    labels = [str(bundle) if stems.count(stem) > 1 else stem for stem, bundle in zip(stems, bundles, strict=True)]
    if len(set(labels)) != len(labels):
        raise UserError("the same bundle is named twice", code="duplicate_bundle", hint="Name each bundle once.")
    return labels


def _report(client: Client, submitted: Submitted, *, quiet: bool) -> VerifyReport:
    from ytk_core.formats.verify_report import read_verify_report

    job = submitted.job
    if not job.state.terminal:
        job = follow_job(client, job.id, submission_id=submitted.submission_id, quiet=quiet)
    check_ended(job)
    with tempfile.TemporaryDirectory(prefix="ytk-verify-") as directory:
        path = Path(directory) / "verify.json"
        client.download(output_blob(job, "verify.json"), path)
        return read_verify_report(path)


# ---- tables ------------------------------------------------------------------------------------------------------------


def _print(wanted: Reference, verified: Sequence[_Verified]) -> None:
    rows = [] if wanted.torch_benchmark is None else [_times(wanted.torch_benchmark.name, wanted.torch_benchmark)]
    rows += [_times(entry.label, entry.report.benchmark) for entry in verified if entry.report.benchmark is not None]
    heads = ("Min", "Mean", "p50", "p95", "p99", "Max")
    print_table(
        ("Implementation", "Iterations", *heads),
        rows,
        title="Benchmark (ms)",
        right=("Iterations", *heads),
        empty="nothing was timed",
    )
    for entry in verified:
        click.echo(f"  {entry.label}: {_conditions(entry.report)}")
    click.echo()
    figures = ("Max abs", "Max rel", "Cosine", "SQNR dB")
    print_table(
        ("Bundle", "Output", "Samples", *figures, "Verdict", "Tolerance", "Source of the tolerance"),
        [row for entry in verified for row in _accuracy_rows(entry)],
        title="Accuracy against torch (the worst of the samples)",
        right=("Samples", *figures),
    )
    plugins = [
        (entry.label, use.placeholder, use.nodes, use.layers, _calls_a_run(use), _use_verdict(use))
        for entry in verified
        for use in entry.report.plugins
    ]
    if plugins:
        click.echo()
        print_table(
            ("Bundle", "Plugin", "Nodes", "Plugin layers", "Kernel calls a run", "Verdict"),
            plugins,
            title="Plugins in the engine",
            right=("Nodes", "Plugin layers", "Kernel calls a run"),
        )
    for entry in verified:
        _conclude(entry)


def _calls_a_run(use: PluginUse) -> str:
    return f"{use.calls / use.runs:.4g}" if use.calls is not None and use.runs else "-"


def _use_verdict(use: PluginUse) -> str:
    if use.idle:
        return f"NOT USED: never called for {', '.join(use.idle[:3])}"
    if not use.ok:
        return "NOT USED"
    return "ok, but not once a node and run" if use.unusual else "ok"


def _times(label: str, row: BenchmarkRow) -> tuple[str, ...]:
    figures = (row.min_ms, row.mean_ms, row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms)
    return (label, str(row.iterations), *(f"{figure:.3f}" for figure in figures))


def _conditions(report: VerifyReport) -> str:
    text = f"{report.engine_name} {report.engine_version}, {report.precision}, {report.arch_spec}"
    found = report.conditions
    if found is None:
        return text
    threads = f", {found.threads} thread(s)" if found.threads else ""
    load = f"load {found.before.load_1m:.1f} -> {found.after.load_1m:.1f} on {found.after.cpus} CPU(s)"
    worker = f", worker {found.worker_id}" if found.worker_id else ""
    state = "stable" if found.stable else f"UNSTABLE: {found.reason}"
    return f"{text}{threads}, {found.warmup} warm-up runs, {load}{worker}; {state}"


def _accuracy_rows(entry: _Verified) -> list[tuple[object, ...]]:
    by_name: dict[str, list[OutputAccuracy]] = {}
    for accuracy in entry.report.outputs:
        by_name.setdefault(accuracy.name, []).append(accuracy)
    return [_accuracy_row(entry.label, name, samples) for name, samples in by_name.items()]


def _accuracy_row(label: str, name: str, samples: Sequence[OutputAccuracy]) -> tuple[object, ...]:
    failed = [sample.sample for sample in samples if not sample.ok]
    if not failed:
        verdict = "ok"
    elif len(samples) == 1:
        verdict = "FAILED"
    else:
        verdict = f"FAILED in sample {', '.join(map(str, failed))}"
    return (
        label,
        name,
        len(samples),
        _worst([sample.max_abs for sample in samples], largest=True, text="{:.3g}"),
        _worst([sample.max_rel for sample in samples], largest=True, text="{:.3g}"),
        _worst([sample.cosine for sample in samples], largest=False, text="{:.7f}"),
        _sqnr(samples),
        verdict,
        samples[0].tolerance,
        samples[0].tolerance_source,
    )


def _worst(values: Sequence[float | None], *, largest: bool, text: str) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"  # not finite, or no angle: the note says which
    return text.format(max(known) if largest else min(known))


def _sqnr(samples: Sequence[OutputAccuracy]) -> str:
    known = [sample.sqnr_db for sample in samples if sample.sqnr_db is not None]
    if known:
        return f"{min(known):.1f}"
    return "exact" if all(sample.max_abs == 0 for sample in samples) else "-"


def _conclude(entry: _Verified) -> None:
    report = entry.report
    for sample in report.outputs:
        if sample.note and not sample.ok:
            warn(f"{entry.label}: output {sample.name}, sample {sample.sample}: {sample.note}")
    if report.ok:
        note(f"{entry.label}: every output is within its tolerance")
    else:
        warn(f"{entry.label}: the engine does not compute what torch computed")
