"""``ytk embedded inspect``: explain a file, from its content, without running anything in it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_client.cli.output import JSON, format_option, print_fields, print_json, print_table
from ytk_core.errors import ExitCode, YtkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ytk_client.inspection import Finding, Inspection

_COLOURS = {"error": "red", "warning": "yellow"}
_NAMED_NODES = 5


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-a",
    "--arch",
    metavar="ARCH_SPEC",
    help="Target to judge it for: an arch spec, or a target profile (trt86, trt101, trt1015, openvino, onnxruntime).  "
    "[default: trt86, the strictest]",
)
@click.option(
    "-p", "--precision", default="fp32", show_default=True, help="Engine precision that plugins are judged for."
)
@click.option(
    "--custom-plugin",
    "plugins",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Plugin to compare the model's custom nodes with; its manifest lies beside it.",
)
@click.option(
    "--second-opinion",
    is_flag=True,
    help="Of a model, also ask the real ONNX parser of TensorRT for RTX (extra `second-opinion`; needs no GPU).",
)
@click.option(
    "--sandbox",
    type=click.Choice(["required", "optional"]),
    default="required",
    show_default=True,
    help="That parser is native code: `optional` runs it even where no sandbox works.",
)
@format_option()
@click.pass_context
def inspect(
    context: click.Context,
    file: Path,
    arch: str | None,
    precision: str,
    plugins: tuple[Path, ...],
    second_opinion: bool,
    sandbox: str,
    output: str,
) -> None:
    """Explain a file without running it: what a target would refuse or misread, and what to do.

    Model (.onnx, whoever exported it), engine bundle (.tgz), plugin (.so), kernel bundle (.module_source.py), reference or
    weights (.npz), region (.pt2), plugins.json, candidates.json, repro (.zip). Nothing in the file is executed. Exit code 0: no
    findings; 1: findings (errors or warnings); 3: unreadable, or no such kind of file.
    """
    from ytk_client.inspection import SCHEMA_VERSION, Request, inspect_file

    request = Request.of(
        arch,
        precision=precision,
        plugins=plugins,
        second_opinion=second_opinion,
        sandbox="optional" if sandbox == "optional" else "required",
    )
    try:
        found = inspect_file(file, request)
    except YtkError as err:
        if output == JSON:
            error = {"code": err.code, "message": err.message, "hint": err.hint}
            print_json({"schema_version": SCHEMA_VERSION, "file": str(file), "kind": None, "ok": False, "error": error})
        raise
    if output == JSON:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "file": str(file),
                "kind": found.kind,
                "target": found.target,
                "ok": found.ok,
                "counts": found.counts,
                "findings": found.findings,
                "content": found.content,
            }
        )
    else:
        _print(file, found)
    if not found.ok:
        context.exit(int(ExitCode.VERDICT))


def _print(file: Path, found: Inspection) -> None:
    print_fields([("file", file), ("kind", found.kind), *found.fields])
    for table in found.tables:
        if table.rows:
            click.echo()
            print_table(table.columns, table.rows, title=table.title)
    groups: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
    for finding in found.findings:
        key = (finding.severity, finding.kind, finding.op, finding.message, finding.fix, finding.rule_id)
        groups[key].append(finding)
    for alike in groups.values():
        click.echo()
        _print_finding(alike)
    click.echo()
    counts = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in found.counts.items() if count)
    print_fields(
        [("target", found.target or "any"), ("verdict", f"{'ok' if found.ok else 'NOT ok'}: {counts or 'no findings'}")]
    )


def _print_finding(alike: Sequence[Finding]) -> None:
    """Print findings that differ only in where they are: the reason once, and the places."""
    first = alike[0]
    head = click.style(f"{first.severity} [{first.kind}]", fg=_COLOURS.get(first.severity), bold=True)
    click.echo(f"{head} {first.op + ': ' if first.op and first.op not in first.message else ''}{first.message}")
    for finding in alike[:_NAMED_NODES]:
        parts = [finding.node, finding.module_path and f"module {finding.module_path}", finding.source_line]
        if place := ", ".join(part for part in parts if part):
            click.echo(f"  at    {place}")
    if len(alike) > _NAMED_NODES:
        click.echo(f"  at    {len(alike) - _NAMED_NODES} more")
    click.echo(f"  fix   {first.fix}")
    if first.rule_id or first.source:
        click.echo(f"  rule  {first.rule_id}{': ' if first.rule_id and first.source else ''}{first.source}")
