"""``ytk embedded build-plugin``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.follow import FollowOptions, follow_options, output_blob, run_job
from ytk_client.cli.output import JSON, format_option, note, print_json, print_table, warn
from ytk_client.outputs import check_outputs

if TYPE_CHECKING:
    from ytk_client.api import Client
    from ytk_core.workers import JobView


@click.command()
@click.option("-a", "--arch", required=True, metavar="ARCH_SPEC", help="Target, from `ytk embedded workers`.")
@click.option(
    "--plugin-name", required=True, help="Name that the plugin registers: that of the placeholder in the ONNX."
)
@click.option("--plugin-namespace", help="Namespace, where it is not the one in the source.")
@click.option(
    "-s",
    "--source",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Kernel bundle, from `ytk kernelgen compile`; it is not changed.",
)
@click.option(
    "-o",
    "--output-file",
    "so_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The .so to write; its manifest goes beside it.",
)
@click.option(
    "--declared-abi",
    is_flag=True,
    help="Where Forge has no headers of this TensorRT: build against an interface declared by hand; the plugin is marked.",
)
@click.option(
    "--onnx",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Model with the node that the plugin is for: compared with the kernel's contract before anything is sent.",
)
@click.option(
    "-p", "--precision", default="fp32", show_default=True, help="With --onnx: what the engine will compute in."
)
@click.option("--no-cache", is_flag=True, help="Build anew even if this build was done before.")
@format_option("--format")
@follow_options
@connection_options
def build_plugin(
    arch: str,
    plugin_name: str,
    plugin_namespace: str | None,
    source: Path,
    so_path: Path,
    declared_abi: bool,
    onnx: Path | None,
    precision: str,
    no_cache: bool,
    output: str,
    detach: bool,
    quiet: bool,
    controller: str | None,
    api_key_file: str | None,
) -> None:
    """Compile a generated kernel into a plugin for an arch spec.

    Writes the .so and <so>.manifest.json, and prints the option to paste into `ytk embedded compile`.
    """
    import msgspec

    from ytk_client.plugins import manifest_path, prepare_source
    from ytk_core.formats.plugin_manifest import read_plugin_manifest
    from ytk_core.formats.plugin_meta import SKELETON
    from ytk_core.jobs import JobKind, JobSpec, PluginBuildParams

    text = prepare_source(source, arch, name=plugin_name, namespace=plugin_namespace, onnx=onnx, precision=precision)
    manifest_file = manifest_path(so_path)
    check_outputs(so_path, manifest_file)
    spec = JobSpec(
        kind=JobKind.PLUGIN_BUILD,
        arch_spec=arch,
        # Only where asked for: the key of the result cache stays that of every other build.
        params=msgspec.to_builtins(PluginBuildParams(declared_abi=True)) if declared_abi else {},
        wall_limit_s=900.0,
        no_cache=no_cache,
    )
    with tempfile.TemporaryDirectory(prefix="ytk-build-plugin-") as directory:
        copy = Path(directory) / source.name
        copy.write_text(text, encoding="utf-8")
        with open_client(controller, api_key_file) as client:
            job = run_job(client, spec, {"source": copy}, FollowOptions(detach, quiet))
            if job is None:
                return
            _fetch(client, job, so_path, manifest_file)
    manifest = read_plugin_manifest(manifest_file)
    option = f"--custom-plugin {so_path}"
    if output == JSON:
        print_json(
            {
                "plugin": str(so_path),
                "manifest": str(manifest_file),
                "custom_plugin": option,
                "job": job.id,
                "from_cache": job.from_cache,
                "checks": manifest.checks,
                "target_verified": manifest.target_verified,
                "unverified": manifest.unseen,
                "skeleton": manifest.meta.generator.strategy == SKELETON,
            }
        )
        return
    print_table(
        ("CHECK", "RESULT", "FOUND"),
        [
            (check.name, "ok" if check.ok else f"FAILED: wanted {check.wanted}", check.found)
            for check in manifest.checks
        ],
        title=f"{manifest.meta.plugin_namespace}::{manifest.meta.plugin_name} for {manifest.arch_spec}{manifest.mark}",
    )
    for text in manifest.unseen:
        note(text)
    if manifest.meta.generator.strategy == SKELETON:
        warn(f"{source} is a skeleton: {so_path.name} loads, and fails every inference with status 8 (YTK_UNSUPPORTED)")
    note("add this to `ytk embedded compile`:")
    click.echo(option)


def _fetch(client: Client, job: JobView, so_path: Path, manifest_file: Path) -> None:
    """Download both files whole before either replaces an older one: they belong together."""
    with tempfile.TemporaryDirectory(prefix=".ytk-", dir=so_path.parent) as directory:
        pairs = [
            (output_blob(job, "manifest.json"), manifest_file),
            (output_blob(job, "plugin.so"), so_path),
        ]
        for blob, path in pairs:
            client.download(blob, Path(directory) / path.name)
        for _, path in pairs:
            (Path(directory) / path.name).replace(path)
            note(f"  wrote      {path}")
