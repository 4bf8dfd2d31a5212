"""Printing: data to stdout as a table or JSON, everything else to stderr. rich is imported in the table branch only."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

TABLE = "table"
JSON = "json"

_PIPE_WIDTH = 120
"""A pipe has no width: what is written to a file is read with one like this later."""
_UNWRAPPED = 4000


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


def line_width() -> int:
    """Give the characters of a line of stdout: ``COLUMNS`` if it is set, else the terminal's, 120 for a pipe."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def console(*, stderr: bool = False) -> Console:
    """Give a rich console: as wide as a line of stdout, or for what is not wrapped (commands to copy) on stderr."""
    from rich.console import Console

    if stderr:
        return Console(
            file=sys.stderr, width=None if sys.stderr.isatty() else _UNWRAPPED, highlight=False, markup=False
        )
    return Console(file=sys.stdout, width=line_width(), highlight=False, markup=False)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    empty: str = "nothing to show",
) -> None:
    """Print rows on stdout; where there are none, say so on stderr.

    No line is wider than :func:`line_width`: cells are wrapped between words, and where that is not enough each row is
    printed as a block with one line per column. Programs read the JSON.

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
    from ytk_client.cli.fit import column_widths, record_lines

    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    width = line_width()
    widths = column_widths([columns, *cells], width)
    if title:
        click.secho(title, bold=True)
    if widths is None:
        for index, row in enumerate(cells):
            click.echo("\n".join([*([""] if index else []), *record_lines(columns, row, width)]))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column, characters in zip(columns, widths, strict=True):
        table.add_column(column, justify="right" if column in right else "left", width=characters)
    for row in cells:
        table.add_row(*map(Text, row))
    console().print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print name and value pairs on stdout, one a line, values aligned; a value of several lines is indented."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        lines = ("-" if value is None or value == "" else str(value)).splitlines() or ["-"]
        click.echo(f"{name:<{width}}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"{'':<{width}}  {line}")
