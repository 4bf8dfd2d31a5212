"""``ytk embedded compile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.follow import FollowOptions, download, follow_options, output_blob, run_job
from ytk_client.cli.output import JSON, format_option, print_fields, print_json, print_table, warn
from ytk_client.outputs import check_outputs
from ytk_core.errors import UserError

if TYPE_CHECKING:
    from ytk_core.formats.engine_bundle import EngineManifest

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("-a", "--arch", required=True, metavar="ARCH_SPEC", help="Target, from `ytk embedded workers`.")
@click.option(
    "-p",
    "--precision",
    default="fp32",
    show_default=True,
    help="What the engine may compute in (fp32, fp16, ...); refused where the engine cannot.",
)
@click.option("--onnx", required=True, type=_FILE, help="Model, from `ytk embedded prepare --onnx-out`.")
@click.option("--npz", required=True, type=_FILE, help="Its weights, from `ytk embedded prepare --npz-out`.")
@click.option(
    "-o",
    "--output-file",
    "bundle_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The engine bundle (.tgz) to write.",
)
@click.option(
    "--custom-plugin",
    "plugin_paths",
    multiple=True,
    type=_FILE,
    help="Plugin from `ytk embedded build-plugin`, with its manifest beside it (repeatable).",
)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:AXIS=MIN,OPT,MAX",
    help="Range of an open input axis (repeatable).  [default: what `ytk embedded prepare --dynamic` wrote into the model]",
)
@click.option(
    "--iterations", type=click.IntRange(1), default=50, show_default=True, help="Timed runs of the benchmark."
)
@click.option("--warmup", type=click.IntRange(0), default=10, show_default=True, help="Runs before the timed ones.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0 leaves it to the worker.")
@click.option("--no-cache", is_flag=True, help="Build anew even if this build was done before.")
@format_option("--format")
@follow_options
@connection_options
def compile_engine(
    arch: str,
    precision: str,
    onnx: Path,
    npz: Path,
    bundle_path: Path,
    plugin_paths: tuple[Path, ...],
    dynamic: tuple[str, ...],
    iterations: int,
    warmup: int,
    threads: int,
    no_cache: bool,
    output: str,
    detach: bool,
    quiet: bool,
    controller: str | None,
    api_key_file: str | None,
) -> None:
    """Build an engine on a worker of the arch spec.

    The plugins travel with the request; those we ship are built on the way. Nodes and plugins are compared before anything is sent; the first difference
    is named. The bundle holds the engine, its plugins, a per-layer profile and a benchmark.
    """
    import msgspec

    from ytk_client.dynamic_ranges import check_plugins_take, ranges_of
    from ytk_client.frontend.dynamic import as_ranges, parse_dynamic
    from ytk_client.plugins import check_model, load_plugins, plugin_inputs
    from ytk_client.precision import check_precision, precision_requirements
    from ytk_client.shipped import built_plugins, shipped_bundles
    from ytk_client.signers import signer_requirements
    from ytk_core.archspec import ArchSpec
    from ytk_core.formats.engine_bundle import read_manifest
    from ytk_core.formats.plugin_meta import SKELETON
    from ytk_core.formats.weights_npz import read_index
    from ytk_core.jobs import EngineBuildParams, JobKind, JobSpec

    target = ArchSpec.parse(arch)
    check_precision(precision, target)
    plugins = load_plugins(plugin_paths)
    for plugin in plugins:
        if not plugin.manifest.target_verified:
            warn(f"{plugin.path}{plugin.manifest.mark}: {plugin.manifest.unseen[0]}")
        if plugin.manifest.meta.generator.strategy == SKELETON:
            warn(f"{plugin.path} is a skeleton: its kernel is not written yet, and every inference with it fails")
    shipped = shipped_bundles(onnx, plugins, target)
    metas = {f"the shipped plugin {name}": bundle.meta for name, bundle in shipped.items()}
    check_model(onnx, plugins, precision=precision, arch=target, shipped=metas)
    ranges = ranges_of(onnx, as_ranges(parse_dynamic(dynamic)), target)
    check_plugins_take(onnx, ranges, [plugin.manifest.meta for plugin in plugins])
    read_index(npz)  # a truncated file is refused here and not on the board
    check_outputs(bundle_path)
    if bundle_path.resolve() in {onnx.resolve(), npz.resolve()}:
        raise UserError(
            f"-o {bundle_path} is an input of this command", code="bad_output_path", hint="Name another file."
        )
    params = EngineBuildParams(
        precision=precision, iterations=iterations, warmup=warmup, threads=threads, ranges=ranges
    )
    spec = JobSpec(
        kind=JobKind.ENGINE_BUILD,
        arch_spec=arch,
        params=msgspec.to_builtins(params),
        requirements=precision_requirements(precision),
        wall_limit_s=7200.0,
        measuring=True,
        no_cache=no_cache,
    )
    with (
        open_client(controller, api_key_file) as client,
        built_plugins(client, shipped, target, quiet=quiet) as built,
    ):
        used = [*plugins, *built]
        if used:
            signers = signer_requirements(used, client.workers("kronos"), target)
            spec = msgspec.structs.replace(spec, requirements=(*spec.requirements, *signers))
        files = {"model.onnx": onnx, "model.npz": npz, **plugin_inputs(used)}
        job = run_job(client, spec, files, FollowOptions(detach, quiet))
        if job is None or job.result is None:
            return
        download(client, output_blob(job, "engine.tgz"), bundle_path)
    manifest = read_manifest(bundle_path)
    if output == JSON:
        print_json(
            {
                "bundle": str(bundle_path),
                "job": job.id,
                "from_cache": job.from_cache,
                "manifest": manifest,
                "summary": job.result.summary,
            }
        )
        return
    _print(bundle_path, manifest, job.result.summary)


def _print(bundle_path: Path, manifest: EngineManifest, summary: dict[str, Any]) -> None:
    plugins = [
        f"{plugin.namespace}::{plugin.name} version {plugin.version}{plugin.mark}" for plugin in manifest.plugins
    ]
    fields: list[tuple[str, object]] = [
        ("bundle", bundle_path),
        ("engine", f"{manifest.engine_name} {manifest.engine_version}, {manifest.precision}"),
        ("built on", f"{manifest.arch_spec} {manifest.device_uid}".strip()),
        ("plugins", "\n".join(plugins) or "none"),
    ]
    if manifest.conditions is not None and not manifest.conditions.stable:
        fields.append(("measured", f"UNSTABLE: {manifest.conditions.reason}"))
    print_fields(fields)
    row = summary.get("benchmark")
    names = ("iterations", "min_ms", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms")
    if isinstance(row, dict) and all(isinstance(row.get(name), int | float) for name in names):
        cells = [row[name] if name == "iterations" else f"{row[name]:.3f}" for name in names]
        print_table(names, [cells], title="Benchmark", right=names)
