"""``ytk kernelgen skeleton`` and ``ytk kernelgen check``: for a kernel that is written by hand. Nothing is sent anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from ytk_client.cli.output import JSON, format_option, note, print_fields, print_json, print_table, warn
from ytk_core.errors import ExitCode, UserError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REGION_HINT = "Use a plugin_candidates/<Name>.pt2 that `ytk embedded prepare` wrote."


@click.command()
@click.option(
    "-r", "--reference", "region", required=True, type=_FILE, help="Region (.pt2), the GAIA_INPUT of the plugin table."
)
@click.option("-a", "--arch", required=True, metavar="ARCH_SPEC", help="Target: a CPU gives C++, a GPU gives CUDA C++.")
@click.option(
    "-o",
    "--output-file",
    "bundle_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The kernel bundle to write, usually <Name>.module_source.py; one that is there is not overwritten.",
)
@format_option("--format")
def kernelgen_skeleton(region: Path, arch: str, bundle_path: Path, output: str) -> None:
    """Write the frame of a kernel, for somebody who writes it by hand.

    It compiles and loads, and computes nothing: until the kernel is written, every inference with it fails with a status that says so.
    """
    from ytk_client.handwritten.check import check_kernel
    from ytk_client.handwritten.skeleton import make_skeleton
    from ytk_client.outputs import check_outputs
    from ytk_core.archspec import ArchSpec
    from ytk_core.files import atomic_write
    from ytk_core.formats.kernel_bundle import render_bundle
    from ytk_core.formats.region import read_region_spec

    target = ArchSpec.parse(arch)
    spec = read_region_spec(region)
    if spec is None:
        raise UserError(f"{region} is no region that `prepare` carved", code="not_a_region", hint=_REGION_HINT)
    check_outputs(bundle_path)
    if bundle_path.exists():
        raise UserError(
            f"{bundle_path} exists, and may hold a kernel that somebody wrote",
            code="file_exists",
            hint="Name another file, or remove it.",
        )
    skeleton = make_skeleton(spec, target)
    with atomic_write(bundle_path, "w") as stream:
        stream.write(render_bundle(skeleton.bundle))
    findings = check_kernel(bundle_path, target, region=spec)
    meta = skeleton.bundle.meta
    if output == JSON:
        print_json({"bundle": str(bundle_path), "meta": meta, "checks": findings, "look_at": skeleton.guesses})
        return
    print_fields(
        [
            ("bundle", bundle_path),
            ("kernel", f"{meta.plugin_namespace}::{meta.plugin_name}, deployment_target={meta.deployment_target}"),
            ("inputs", ", ".join(f"{tensor.name} (rank {tensor.rank})" for tensor in meta.inputs)),
            ("variants", ", ".join(variant.id for variant in meta.variants)),
            ("checked", ", ".join(each.check for each in findings if each.ok)),
        ]
    )
    for text in skeleton.guesses:
        warn(f"look at PLUGIN_META: {text}")
    numbers = (
        f"  ytk embedded capture {region} -o {meta.plugin_name}.repro\n  ytk embedded replay {meta.plugin_name}.repro --kernel {bundle_path}\n"
        if target.device_kind == "cpu"
        else ""
    )
    note(
        "write the kernel in SOURCE and delete the line `#define YTK_SKELETON`, then:\n"
        f"  ytk kernelgen check {bundle_path} -a {arch} -r {region}\n{numbers}"
        f"  ytk embedded build-plugin -a {arch} --plugin-name {meta.plugin_name} -s {bundle_path} -o {meta.plugin_name}.so"
    )


@click.command()
@click.argument("bundle_path", metavar="BUNDLE", type=_FILE)
@click.option("-a", "--arch", required=True, metavar="ARCH_SPEC", help="What it is for.")
@click.option(
    "-r", "--reference", "region", type=_FILE, help="Region (.pt2) that it stands for: border and types are compared."
)
@click.option("--onnx", type=_FILE, help="Model with its node: compared like `ytk embedded compile` does.")
@click.option("-p", "--precision", default="fp32", show_default=True, help="What the engine will compute in.")
@format_option()
@click.pass_context
def kernelgen_check(
    context: click.Context,
    bundle_path: Path,
    arch: str,
    region: Path | None,
    onnx: Path | None,
    precision: str,
    output: str,
) -> None:
    """Check a kernel bundle: contract, target, region, and that it compiles.

    It is not run. Exit code 1 where a check fails. Whether it computes the right numbers: `ytk embedded replay --kernel`.
    """
    from ytk_client.handwritten.check import check_kernel
    from ytk_core.archspec import ArchSpec
    from ytk_core.formats.region import read_region_spec

    spec = read_region_spec(region) if region is not None else None
    if region is not None and spec is None:
        raise UserError(f"{region} is no region that `prepare` carved", code="not_a_region", hint=_REGION_HINT)
    findings = check_kernel(bundle_path, ArchSpec.parse(arch), region=spec, onnx=onnx, precision=precision)
    if output == JSON:
        print_json({"bundle": str(bundle_path), "checks": findings})
    else:
        words = {True: "ok", False: "FAILED", None: "not checked"}
        print_table(
            ("CHECK", "RESULT", "FOUND", "FIX"),
            [(each.check, words[each.ok], each.found, each.fix or None) for each in findings],
            title=str(bundle_path),
        )
    if any(each.ok is False for each in findings):
        context.exit(int(ExitCode.VERDICT))
