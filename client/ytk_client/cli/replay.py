"""``ytk embedded replay``: run a repro and say whether it still does what was captured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_client.cli.output import JSON, format_option, print_fields, print_json, print_table
from ytk_core.errors import ExitCode

if TYPE_CHECKING:
    from ytk_client.repro.replay import Replay


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--kernel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run this plugin (.so, its manifest beside it) or kernel bundle instead of torch.",
)
@click.option("--rtol", type=float, help="Relative tolerance instead of the default.")
@click.option("--atol", type=float, help="Absolute tolerance instead of the default.")
@click.option(
    "--sandbox",
    type=click.Choice(["required", "optional"]),
    default="required",
    show_default=True,
    help="A repro is somebody's code: `optional` runs it even where no sandbox works.",
)
@click.option(
    "--timeout", type=click.FloatRange(1), default=600.0, show_default=True, metavar="SECONDS", help="Limit of the run."
)
@click.option(
    "--export", is_flag=True, help="Try torch's ONNX exporter too; done anyway where the repro says if it worked."
)
@format_option()
@click.pass_context
def replay(
    context: click.Context,
    file: Path,
    kernel: Path | None,
    rtol: float | None,
    atol: float | None,
    sandbox: str,
    timeout: float,
    export: bool,
    output: str,
) -> None:
    """Run a repro and compare with what was captured.

    FILE is what `ytk embedded capture` wrote, here or elsewhere. Its Python, or the kernel given, runs in a sandboxed child
    process without network. Exit code 0: it gives what was captured; 1: it differs.
    """
    from ytk_client.repro.replay import replay as run

    found = run(
        file,
        kernel=kernel,
        rtol=rtol,
        atol=atol,
        sandbox="optional" if sandbox == "optional" else "required",
        wall_limit_s=timeout,
        export=export,
    )
    if output == JSON:
        print_json(found)
    else:
        _print(file, found)
    if not found.ok:
        context.exit(int(ExitCode.VERDICT))


def _print(file: Path, found: Replay) -> None:
    from ytk_client.cli.capture import why_not

    captured = ", ".join(f"{name} {version}" for name, version in found.captured_with.items())
    here = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    print_fields(
        [
            ("repro", file),
            ("kind", found.kind),
            ("name", found.name or "(top)"),
            ("run by", found.by + (f" ({here})" if here else "")),
            ("captured with", captured),
            ("verdict", "match" if found.ok else f"differs: {why_not(found)}"),
        ]
    )
    if found.exports is not None:
        error = found.export_error
        print_fields(
            [("ONNX export", "works" if error is None else f"{error.type}: {error.message.splitlines()[0][:300]}")]
        )
    if found.expected_raise is not None:
        print_fields([("expected", f"{found.expected_raise.type}: {found.expected_raise.message}")])
    if found.outputs:
        click.echo()
        print_table(
            ("OUTPUT", "RESULT", "MAX ABS", "MAX REL", "COSINE", "TOLERANCE", "NOTE"),
            [
                (
                    each.name,
                    "match" if each.ok else "DIFFERS",
                    _short(each.max_abs),
                    _short(each.max_rel),
                    None if each.cosine is None else f"{each.cosine:.7f}",
                    f"{each.tolerance} ({each.tolerance_source})",
                    each.note or None,
                )
                for each in found.outputs
            ],
        )


def _short(figure: float | None) -> str | None:
    return None if figure is None else f"{figure:.3g}"
