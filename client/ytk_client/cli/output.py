"""Printing: data to stdout as a table or JSON, everything else to stderr. rich is imported in the table branch only."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

TABLE = "table"
JSON = "json"

# Wider than any of our tables: a pipe has no width, and a cell cut short there is lost.
_PIPE_WIDTH = 4000


def format_option(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give the option that chooses table or JSON; the function receives it as ``output``.

    Args:
        names: The flags; ``-o`` and ``--format`` unless the command's ``-o`` is a file.
    """
    return click.option(
        *(names or ("-o", "--format")),
        "output",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        help="How data is printed.",
    )


def note(text: str) -> None:
    """Say something about the work to the person in front, on stderr."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    """Say something that needs attention, on stderr."""
    click.secho(f"warning: {text}", err=True, fg="yellow")


def print_json(value: Any) -> None:
    """Print a value (structs, dicts, lists, numbers, text) as indented JSON on stdout.

    NaN and infinities become null: JSON has no word for them.
    """
    import msgspec

    click.echo(json.dumps(_finite(msgspec.to_builtins(value)), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124 - NaN
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def console(*, stderr: bool = False) -> Console:
    """Give a rich console; off a terminal it is as wide as its content."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    empty: str = "nothing to show",
) -> None:
    """Print rows on stdout; where there are none, say so on stderr.

    Args:
        columns: The heads.
        rows: One cell per column; None prints as ``-``.
        title: A line above the table.
        right: Heads of right-aligned columns (figures).
        empty: What to say when ``rows`` is empty.
    """
    if not rows:
        note(empty)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    console().print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print name and value pairs on stdout, one a line, values aligned; a value of several lines is indented."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        lines = ("-" if value is None or value == "" else str(value)).splitlines() or ["-"]
        click.echo(f"{name:<{width}}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"{'':<{width}}  {line}")
