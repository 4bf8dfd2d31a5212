"""``ytk embedded catalogue``."""

from __future__ import annotations

from pathlib import Path

import click

from ytk_client.cli.output import JSON, format_option, note, print_json, print_table

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--onnx", type=_FILE, help="Only the shipped plugins that this model needs.")
@click.option("-a", "--arch", metavar="ARCH_SPEC", help="Target whose kernels to write.")
@click.option(
    "--sources",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the kernels of the model's shipped plugins into this directory (needs --onnx and -a).",
)
@format_option("-o", "--format")
def catalogue(onnx: Path | None, arch: str | None, sources: Path | None, output: str) -> None:
    """List the plugins we ship, or write the kernels that a model needs.

    `ytk embedded compile` builds them itself; the kernels are for who wants to read, change or build them by hand.
    """
    from ytk_core.catalogue import ENTRIES, NAMESPACE, entry_of
    from ytk_core.node_contracts import node_contracts_from_onnx

    if sources is not None and (onnx is None or arch is None):
        raise click.UsageError("--sources needs --onnx and -a: the kernels depend on the model and on the target.")
    if onnx is None:
        rows = [(entry.name, entry.summary) for entry in ENTRIES]
    else:
        nodes = [node for node in node_contracts_from_onnx(onnx) if node.namespace == NAMESPACE]
        rows = [(name, entry_of(name).summary) for name in dict.fromkeys(node.name for node in nodes)]
    written = _write(onnx, arch, sources) if onnx is not None and arch is not None and sources is not None else []
    if output == JSON:
        print_json({"plugins": [{"name": name, "summary": text} for name, text in rows], "written": written})
        return
    print_table(("PLUGIN", "COMPUTES"), rows, empty=f"{onnx} needs no plugin that we ship")


def _write(onnx: Path, arch: str, folder: Path) -> list[str]:
    from ytk_client.plugins import TARGET_OF_ENGINE
    from ytk_core.archspec import ArchSpec
    from ytk_core.catalogue import bundles_for
    from ytk_core.files import atomic_write
    from ytk_core.formats.kernel_bundle import render_bundle
    from ytk_core.node_contracts import node_contracts_from_onnx

    target = TARGET_OF_ENGINE[ArchSpec.parse(arch).engine_name]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, bundle in bundles_for(node_contracts_from_onnx(onnx), target).items():
        path = folder / f"{name}.module_source.py"
        with atomic_write(path) as file:
            file.write(render_bundle(bundle).encode())
        note(f"  wrote      {path}")
        paths.append(str(path))
    return paths
