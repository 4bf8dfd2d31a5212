"""Fit tables into a width: wrap between words, and print row by row where that is not enough. Nothing is cut short.

A name, a path or a figure is never broken over two lines: somebody may want to copy it or look for it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_BORDERS = 3
"""Characters that each column of a table needs beside its text; one more for the table."""


def column_widths(cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Choose the width of each column of a table.

    Args:
        cells: Heads first, then the rows; a cell may have several lines.
        width: Characters of a line.

    Returns:
        The widths, each at least that of the longest word of its column; None where a table of such columns is wider.
    """
    columns = list(zip(*cells, strict=True))
    whole = [max(_longest(cell.splitlines()) for cell in column) for column in columns]
    least = [max(_longest(cell.split()) for cell in column) for column in columns]
    room = width - _BORDERS * len(columns) - 1
    if sum(least) > room:
        return None
    if sum(whole) <= room:
        return whole
    # The widest columns give way first: the greatest cap under which everything fits.
    cap = max(each for each in range(1, max(whole) + 1) if sum(_capped(whole, least, each)) <= room or each == 1)
    widths = _capped(whole, least, cap)
    spare = room - sum(widths)
    for index in sorted(range(len(widths)), key=lambda at: widths[at] - whole[at]):
        given = min(spare, whole[index] - widths[index])
        widths[index] += given
        spare -= given
    return widths


def record_lines(heads: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """Give a row as lines ``HEAD  cell``, wrapped between words; a word that is longer than the line stays whole."""
    margin = max(map(len, heads)) + 2
    lines: list[str] = []
    for head, cell in zip(heads, row, strict=True):
        wrapped = [
            part
            for line in cell.splitlines() or ["-"]
            for part in textwrap.wrap(line, max(width - margin, 20), break_long_words=False, break_on_hyphens=False)
            or [""]
        ]
        lines.append(f"{head:<{margin}}{wrapped[0]}".rstrip())
        lines += [f"{'':<{margin}}{part}" for part in wrapped[1:]]
    return lines


def _capped(whole: Sequence[int], least: Sequence[int], cap: int) -> list[int]:
    return [min(full, max(minimum, cap)) for full, minimum in zip(whole, least, strict=True)]


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)
