"""``ytk embedded profile``."""

from __future__ import annotations

from pathlib import Path

import click

from ytk_client.cli.output import JSON, format_option, note, print_json, print_table

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("bundle", type=_FILE)
@click.option(
    "--fx-nodes", "fx_nodes", type=_FILE, help="fx_nodes.json of the model; default: the one beside the bundle."
)
@click.option(
    "--by", type=click.Choice(["module", "layer"]), default="module", show_default=True, help="What to add up."
)
@click.option("--depth", type=click.IntRange(min=0), default=0, help="Add up below so many names of a path; 0: none.")
@click.option("--top", type=click.IntRange(min=1), default=30, show_default=True, help="Rows of the table.")
@format_option("-o", "--format")
def profile(bundle: Path, fx_nodes: Path | None, by: str, depth: int, top: int, output: str) -> None:
    """Tell where the time of an engine goes, by modules of the model.

    Reads the times that the worker took when it built BUNDLE; nothing runs. A layer that stands for operators of several modules
    belongs to the module around them.
    """
    from ytk_client.attribution import by_layer, by_module, engine_times
    from ytk_core.formats.engine_bundle import read_json_member, read_manifest
    from ytk_core.formats.prepare_outputs import read_fx_nodes

    manifest = read_manifest(bundle)
    times = engine_times(read_json_member(bundle, "profile.json"), str(bundle))
    shares = (
        by_layer(times) if by == "layer" else by_module(times, read_fx_nodes(_beside(bundle, fx_nodes)), depth=depth)
    )
    if output == JSON:
        print_json(
            {
                "bundle": str(bundle),
                "arch_spec": manifest.arch_spec,
                "precision": manifest.precision,
                "end_to_end_ms": times.end_to_end_ms,
                "by": by,
                "rows": [
                    {
                        "owner": each.owner,
                        "class": each.module_class,
                        "layers": each.layers,
                        "ms": each.ms,
                        "plugins": each.plugins,
                    }
                    for each in shares
                ],
            }
        )
        return
    total = times.end_to_end_ms
    rows = [
        (
            each.owner,
            each.module_class or None,
            each.layers,
            f"{each.ms:.4g}",
            f"{100 * each.ms / total:.1f}" if total else None,
            ", ".join(each.plugins) or None,
        )
        for each in shares[:top]
    ]
    heads = (by.upper(), "TYPE" if by == "layer" else "CLASS", "LAYERS", "MS", "%", "PLUGINS")
    title = f"{bundle.name}: {total:.4g} ms a run with every layer measured, {manifest.precision}, {manifest.arch_spec}"
    print_table(heads, rows, title=title, right=("LAYERS", "MS", "%"))
    rest = shares[top:]
    if rest:
        note(f"{len(rest)} more take {sum(each.ms for each in rest):.4g} ms; --top shows them")
    if manifest.conditions is not None and not manifest.conditions.stable:
        note(f"the conditions drifted while it was measured: {manifest.conditions.reason}")


def _beside(bundle: Path, named: Path | None) -> Path:
    if named is not None:
        return named
    found = bundle.parent / "fx_nodes.json"
    if not found.exists():
        raise click.UsageError(
            f"{found} does not exist: name the fx_nodes.json that prepare wrote with --fx-nodes, or use --by layer."
        )
    return found
