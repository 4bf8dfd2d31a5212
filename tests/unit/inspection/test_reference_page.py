"""docs/reference/inspect.md lists the kinds of findings that a model can have, no more and no fewer."""

from __future__ import annotations

import re
from pathlib import Path

from ytk_client import inspection
from ytk_core.targets.profiles import Kind

PAGE = Path(__file__).parents[3] / "docs/reference/inspect.md"
CODE = Path(inspection.__file__).parent


def test_every_kind_has_its_row():
    text = "".join(path.read_text(encoding="utf-8") for path in (*CODE.glob("onnx_*.py"), CODE / "second_opinion.py"))
    kinds = set(re.findall(r'kind="([a-z0-9-]+)"', text)) - {"model"}  # the kind of the file
    kinds |= {"plugin-*" if word == "plugin-" else word for word in re.findall(r'kind=f"([a-z-]+)\{', text)} - {
        "narrowed-"
    }
    kinds |= {"narrowed-float64", "narrowed-int64"} | {str(kind) for kind in Kind if kind is not Kind.NOTE}
    table = PAGE.read_text(encoding="utf-8").partition("### Findings in a model")[2].partition("\n## ")[0]
    rows = {
        word
        for line in table.splitlines()
        if line.startswith("| `")
        for word in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    assert rows == kinds
