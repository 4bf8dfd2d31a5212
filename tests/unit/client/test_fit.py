"""Tables keep to the width of the terminal, and no name is broken or cut short."""

import pytest

from ytk_client.cli import output
from ytk_client.cli.fit import column_widths, record_lines

HEADS = ("CHECK", "RESULT", "FOUND")
AUDIT = [
    ("elf.needed", "ok", "libcuda.so.1 and nothing else of what the allow-list of this toolchain would let pass"),
    ("symbols.exported", "FAILED: wanted getCreators", "getPluginCreators, setLoggerFinder, and a static registrar"),
]
LONG = "_ZN3ytk6detail27a_kernel_with_a_rather_long_nameILi3ELi5EfEEvPKT1_PS3_i"


@pytest.mark.parametrize(
    ("cells", "width", "wanted"),
    [
        ([("a", "b")], 80, [1, 1]),
        ([("a", "two words")], 80, [1, 9]),
        ([("a", "two words")], 13, [1, 5]),
        ([("a", "two words")], 12, None),
        ([("four five six", "four five six seven eight")], 37, [13, 17]),
        ([("x" * 10, "y\nz")], 18, [10, 1]),
        ([("", "")], 20, [0, 0]),
    ],
)
def test_widths(cells, width, wanted):
    assert column_widths(cells, width) == wanted


def test_a_row_as_lines_keeps_long_names_whole():
    lines = record_lines(("NAME", "FOUND"), (LONG, "one two three four five six"), 24)
    assert lines == [f"NAME   {LONG}", "FOUND  one two three four", "       five six"]


def printed(capsys, monkeypatch, rows, columns=None, heads=HEADS):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    output.print_table(heads, rows, title="yasp::Fold for amd64")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("72", 72), (None, 120), ("nonsense", 120)])
def test_no_line_is_wider_than_the_terminal_and_every_word_is_there(capsys, monkeypatch, columns, width):
    lines = printed(capsys, monkeypatch, AUDIT, columns)
    assert max(map(len, lines)) <= width
    assert lines[0] == "yasp::Fold for amd64"
    words = set(" ".join(lines).split())
    assert all(word in words for row in (HEADS, *AUDIT) for cell in row for word in cell.split())


def test_what_fits_into_no_table_is_printed_row_by_row(capsys, monkeypatch):
    lines = printed(capsys, monkeypatch, [(LONG, "ok", LONG), (LONG, "ok", None)], "80")
    assert lines[1:] == [
        f"CHECK   {LONG}",
        "RESULT  ok",
        f"FOUND   {LONG}",
        "",
        f"CHECK   {LONG}",
        "RESULT  ok",
        "FOUND   -",
    ]
