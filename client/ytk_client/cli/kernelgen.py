"""``ytk kernelgen``: generate a kernel for a region, or fetch one that was generated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.follow import FollowOptions, check_ended, download, follow_options, output_blob, run_job
from ytk_client.cli.output import JSON, format_option, note, print_fields, print_json, print_table, warn
from ytk_client.outputs import check_outputs
from ytk_core.errors import FailureClass, RemoteError, UserError

if TYPE_CHECKING:
    from ytk_client.api import Client
    from ytk_client.routing import Offer
    from ytk_core.formats.plugin_meta import DeploymentTarget
    from ytk_core.formats.region import RegionSpec
    from ytk_core.workers import JobView

_BUNDLE = "bundle.py"
_REPORT = "report.json"
_LIST = "list"


def _print_keys(context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Answer ``--config list`` before the required options are asked for."""
    if value == (_LIST,):
        from ytk_core.kernelgen_config import KEYS

        print_table(
            ("KEY", "DEFAULT", "ALLOWED", "MEANING"),
            [(key.name, _default(key.default), key.allowed, key.meaning) for key in KEYS],
        )
        context.exit()
    return value


def _default(value: Any) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


@click.command()
@click.option(
    "-r",
    "--reference",
    "region",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Region (.pt2), the GAIA_INPUT of the plugin table.",
)
@click.option("-g", "--gpu", required=True, help="Where to score: a device name, an arch spec, or `cpu`.")
@click.option(
    "--config",
    "config",
    multiple=True,
    metavar="KEY=VALUE",
    is_eager=True,
    callback=_print_keys,
    help="Setting of the generator (repeatable); `--config list` shows all.",
)
@click.option(
    "-o",
    "--output-file",
    "bundle_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The kernel bundle to write, usually <Name>.module_source.py.",
)
@click.option(
    "--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the search report (JSON)."
)
@click.option(
    "--budget",
    metavar="SECONDS[,CANDIDATESc]",
    help="How much to measure: 90s, 16c (candidates), or both: 90s,16c. Short for --config budget= and candidates=.",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A kernel bundle of this region that every candidate is measured against, side by side.",
)
@click.option("--no-cache", is_flag=True, help="Generate anew even if this was generated before.")
@format_option("--format")
@follow_options
@connection_options
def kernelgen_compile(
    region: Path,
    gpu: str,
    config: tuple[str, ...],
    bundle_path: Path,
    report_path: Path | None,
    budget: str | None,
    baseline: Path | None,
    no_cache: bool,
    output: str,
    detach: bool,
    quiet: bool,
    controller: str | None,
    api_key_file: str | None,
) -> None:
    """Generate a kernel for a region and keep the fastest right one.

    Pass --config deployment_target=cpu for CPU engines (OpenVINO), deployment_target=tensorrt for TensorRT. Candidates
    are scored on the evaluator that -g names; `ytk eval workers` lists them.
    """
    import msgspec

    from ytk_client.routing import check_deployment, choose, offers, toolchain
    from ytk_core.formats.region import read_region_spec
    from ytk_core.jobs import JobKind, JobSpec, KernelGenerateParams
    from ytk_core.kernelgen_config import check_region

    settings = _settings(config, budget)
    spec = read_region_spec(region)
    if spec is None:
        raise UserError(
            f"{region} is a torch.export program, but not a region that `prepare` carved",
            code="not_a_region",
            hint="Use a plugin_candidates/<Name>.pt2 that `ytk embedded prepare` wrote.",
        )
    check_region(settings, spec)
    _check_baseline(baseline, spec, settings)
    check_outputs(bundle_path, report_path)
    with open_client(controller, api_key_file) as client:
        workers = client.workers("gaia")
        offer = choose(offers(workers), gpu)
        target = _target(config, settings)
        check_deployment(target, offer, client.workers("kronos"))
        _say_route(offer, target)
        params = KernelGenerateParams(
            config=settings, gpu=str(offer.arch), name=spec.name, toolchain=toolchain(workers, offer)
        )
        job_spec = JobSpec(
            kind=JobKind.KERNEL_GENERATE,
            arch_spec=str(offer.arch),
            params=msgspec.to_builtins(params),
            requirements=_requirements(spec.torch_version),
            wall_limit_s=3600.0 + 4 * settings["budget"],
            no_cache=no_cache,
        )
        files = {"region.pt2": region} | ({"baseline.py": baseline} if baseline else {})
        job = run_job(client, job_spec, files, FollowOptions(detach, quiet))
        if job is None:
            return
        _fetch(client, job, bundle_path, report_path)
    _print(job, bundle_path, report_path, output)


def _settings(pairs: tuple[str, ...], budget: str | None) -> dict[str, Any]:
    from ytk_core.kernelgen_config import parse_assignments, parse_budget

    if _LIST in pairs:
        raise UserError(
            "`--config list` stands alone", code="bad_config_value", hint="ytk kernelgen compile --config list"
        )
    more = parse_budget(budget) if budget is not None else {}
    given = {pair.partition("=")[0].strip() for pair in pairs}
    if twice := sorted(given & more.keys()):
        raise UserError(
            f"--budget and --config {twice[0]} both say how much to measure",
            code="bad_config_value",
            hint="Give one of the two.",
        )
    return parse_assignments([*pairs, *(f"{key}={value}" for key, value in more.items())])


def _check_baseline(path: Path | None, spec: RegionSpec, settings: dict[str, Any]) -> None:
    """Compare a given kernel with the region before a job is spent on the comparison."""
    if path is None:
        return
    from ytk_core.formats.kernel_bundle import read_bundle

    meta = read_bundle(path).meta
    if meta.region_digest != spec.digest:
        raise UserError(
            f"{path} is a kernel of another region ({meta.plugin_namespace}::{meta.plugin_name})",
            code="wrong_baseline",
            hint="Give a kernel bundle that was generated from this .pt2.",
        )
    if meta.deployment_target != settings["deployment_target"]:
        raise UserError(
            f"{path} is for deployment_target={meta.deployment_target}, the search for {settings['deployment_target']}",
            code="wrong_baseline",
            hint="Give a kernel bundle of the same deployment target.",
        )


def _target(pairs: tuple[str, ...], settings: dict[str, Any]) -> DeploymentTarget | None:
    """Give the deployment target that was asked for; the default is not an answer, see check_deployment."""
    from ytk_core.formats.plugin_meta import DeploymentTarget

    given = any(pair.partition("=")[0].strip() == "deployment_target" for pair in pairs)
    return DeploymentTarget(settings["deployment_target"]) if given else None


def _say_route(offer: Offer, target: DeploymentTarget | None) -> None:
    note(f"scoring on {offer.shown}, worker {offer.worker_id}")
    if offer.emulated:
        note(
            "emulated: kernels are compiled for the device and checked on this CPU; their order is by static facts, not measured"
        )
    if target == "torch":
        warn("deployment_target=torch gives a kernel that `ytk embedded build-plugin` cannot package")


def _requirements(torch_version: str) -> tuple[str, ...]:
    """Ask for a generator of the torch that wrote the region: another one may not read it."""
    public = torch_version.partition("+")[0]
    return (f"torch=={public}",) if public else ()


def _fetch(client: Client, job: JobView, bundle_path: Path, report_path: Path | None) -> None:
    if report_path is not None:
        download(client, output_blob(job, _REPORT), report_path)
    download(client, output_blob(job, _BUNDLE), bundle_path)


def _print(job: JobView, bundle_path: Path, report_path: Path | None, output: str) -> None:
    from ytk_core.formats.kernel_bundle import read_bundle

    assert job.result is not None
    meta = read_bundle(bundle_path).meta
    if output == JSON:
        print_json(
            {
                "bundle": str(bundle_path),
                "report": None if report_path is None else str(report_path),
                "job": job.id,
                "from_cache": job.from_cache,
                "meta": meta,
                "summary": job.result.summary,
            }
        )
        return
    figures = [
        (name.replace("_", " "), value)
        for name, value in job.result.summary.items()
        if isinstance(value, str | int | float | bool)
    ]
    print_fields(
        [
            ("bundle", bundle_path),
            ("kernel", f"{meta.plugin_namespace}::{meta.plugin_name}, deployment_target={meta.deployment_target}"),
            ("strategy", meta.generator.strategy),
            ("inputs", ", ".join(f"{tensor.name} (rank {tensor.rank})" for tensor in meta.inputs)),
            ("variants", ", ".join(variant.id for variant in meta.variants)),
            *figures,
        ]
    )


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output-file",
    "bundle_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The kernel bundle to write.",
)
@click.option(
    "--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the search report (JSON)."
)
@format_option("--format")
@connection_options
def kernelgen_get(
    job: str,
    bundle_path: Path,
    report_path: Path | None,
    output: str,
    controller: str | None,
    api_key_file: str | None,
) -> None:
    """Download the kernel of a generation job.

    For a job that was submitted with --detach, or whose command was interrupted.
    """
    from ytk_core.jobs import JobKind

    check_outputs(bundle_path, report_path)
    with open_client(controller, api_key_file) as client:
        view = client.job(job)
        if view.spec.kind is not JobKind.KERNEL_GENERATE:
            raise UserError(
                f"job {job} is a {view.spec.kind}, not a {JobKind.KERNEL_GENERATE}",
                code="wrong_kind",
                hint=f"`ytk jobs attach {job} --download DIRECTORY` fetches what any job gave.",
            )
        if not view.state.terminal:
            raise RemoteError(
                f"job {job} is {view.state.lower()}: {view.progress:.0%} {view.progress_note}".rstrip(),
                code="not_finished",
                failure_class=FailureClass.YOURS,
                hint=f"Wait for it with: ytk jobs attach {job}",
            )
        _fetch(client, check_ended(view), bundle_path, report_path)
    _print(view, bundle_path, report_path, output)
