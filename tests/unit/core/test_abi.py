"""The ctypes binding against the header: sizes, offsets, numbers. A drift would be read as garbage, not as an error."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ytk_core.abi import ABI_VERSION, CTYPES_DIR, MAX_RANK, include_dir
from ytk_core.abi import ctypes_abi as abi
from ytk_core.dtypes import ONNX_NUMBER
from ytk_core.formats.plugin_meta import FORMAT_NUMBER, AttributeType
from ytk_forge.render import ATTRIBUTE_NUMBER

STRUCTS = {
    "ytk_tensor": abi.Tensor,
    "ytk_attr": abi.Attr,
    "ytk_context": abi.Context,
    "ytk_variant": abi.Variant,
    "ytk_attr_decl": abi.AttrDecl,
    "ytk_plugin_table": abi.Table,
}


@pytest.fixture(scope="module")
def header_says(tmp_path_factory) -> dict[str, int]:
    """What a compiler makes of the header: ``struct``, ``struct.field`` and enum constants as numbers."""
    directory = tmp_path_factory.mktemp("abi")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in struct._fields_]
    constants = re.findall(
        r"^\s*(YTK_[A-Z0-9_]+)(?: = \d+)?,?$|(YTK_[A-Z0-9_]+) = \d+", (include_dir() / "ytk_kernel.h").read_text(), re.M
    )
    lines += [f'printf("{name} %d\\n", (int){name});' for pair in constants for name in pair if name]
    source = directory / "p.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "ytk_kernel.h"\nint main(void) { '
        + "\n".join(lines)
        + " }\n"
    )
    subprocess.run(["g++", f"-I{include_dir()}", str(source), "-o", str(directory / "p")], check=True, timeout=600)
    done = subprocess.run([directory / "p"], capture_output=True, text=True, check=True, timeout=600)
    return {name: int(value) for name, value in (line.split() for line in done.stdout.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_layout(name, header_says):
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == header_says[name]
    for field in struct._fields_:
        assert getattr(struct, field[0]).offset == header_says[f"{name}.{field[0]}"], field[0]


def test_every_field_of_the_header_is_bound():
    header = (include_dir() / "ytk_kernel.h").read_text()
    for name, struct in STRUCTS.items():
        body = re.search(rf"typedef struct {name} {{(.*?)\n}} {name};", header, re.S)
        assert body is not None, name
        text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.S)
        declared = re.findall(r"(\w+)(?:\[\w+\])?;", text)
        assert declared == [field[0] for field in struct._fields_]


def test_numbers(header_says):
    assert abi.ABI_VERSION == ABI_VERSION
    assert abi.MAX_RANK == MAX_RANK
    for dtype, number in ONNX_NUMBER.items():
        assert header_says[f"YTK_{dtype.value.upper()}"] == number
    for fmt, number in FORMAT_NUMBER.items():
        assert header_says[f"YTK_{fmt.value.removeprefix('k').upper()}"] == number
    for kind, number in ATTRIBUTE_NUMBER.items():
        assert header_says[f"YTK_ATTR_{kind.value.upper()}"] == number
    assert set(ATTRIBUTE_NUMBER) == set(AttributeType)
    header = (include_dir() / "ytk_kernel.h").read_text()
    body = re.search(r"enum ytk_status {(.*?)}", header, re.S)
    assert body is not None
    assert {int(number): name for name, number in re.findall(r"(YTK_\w+) = (\d+)", body[1])} == abi.STATUS


def test_bare_interpreters_can_import_it():
    """Sandboxed programs have neither our packages nor site-packages."""
    script = f"import sys; sys.path.insert(0, {str(CTYPES_DIR)!r}); import ctypes_abi; print(ctypes_abi.ABI_VERSION)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == str(ABI_VERSION)


def test_nobody_else_writes_the_structures():
    """Three copies would drift apart one by one, and each would be read as garbage."""
    root = Path(__file__).parents[3]
    sources = [path for part in ("agents", "client", "core", "controller") for path in (root / part).rglob("*.py")]
    found = [path for path in sources if '("workspace_bytes",' in path.read_text(encoding="utf-8")]
    assert [path.name for path in found] == ["ctypes_abi.py"]
