from __future__ import annotations

import subprocess

import msgspec
import pytest

from ytk_core.abi import include_dir
from ytk_core.errors import FormatError
from ytk_core.formats.plugin_meta import (
    AttributeDecl,
    AttributeType,
    ConstantAxis,
    Constraints,
    Extent,
    InputDecl,
    Launcher,
)
from ytk_forge.render import Axis, braces, c_double, c_string, input_axes, render_table

from fakes import kernel_bundles as bundles


class TestStrings:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "yasp",
            'a"b',
            "back\\slash",
            "new\nline",
            "tab\t",
            "??/",
            "\x01" + "7",
            "ümläut",
            "日本",
            "\\\n#error x",
            "'%s%n",
        ],
    )
    def test_the_compiler_reads_back_the_bytes(self, text, tmp_path):
        source = tmp_path / "s.c"
        source.write_text(
            f"#include <stdio.h>\nint main(void) {{ fwrite({c_string(text)}, 1, sizeof({c_string(text)}) - 1, stdout); }}\n"
        )
        subprocess.run(["g++", "-trigraphs", str(source), "-o", str(tmp_path / "s")], check=True, timeout=600)
        done = subprocess.run([tmp_path / "s"], capture_output=True, check=True, timeout=600)
        assert done.stdout == text.encode()

    @pytest.mark.parametrize("value", [0.1, -0.0, 1e-320, 1.7976931348623157e308, 3.0])
    def test_doubles_are_exact(self, value):
        assert float.fromhex(c_double(value)) == value

    def test_infinities_and_nan(self):
        assert c_double(float("inf")) == "__builtin_inf()"
        assert c_double(float("-inf")) == "-__builtin_inf()"
        with pytest.raises(FormatError, match="NaN"):
            c_double(float("nan"))

    def test_braces(self):
        assert braces([1, "x"]) == "{1, x}"
        assert braces([]) == "{}"


class TestAxes:
    def axes(self, dims, **more):
        meta = bundles.meta("X", [InputDecl(name="x", rank=len(dims), dims=dims)], [], [], **more)
        return input_axes(meta, 0)

    def test_joined(self):
        assert self.axes(
            [None, 6, None, None],
            extents=[Extent(input=0, axis=0, min=2, opt=4, max=8)],
            constant_axes=[ConstantAxis(input=0, axis=2, extent=5)],
            constraints=Constraints(divisible=[(0, 0, 2), (0, 3, 4), (0, 3, 6)]),
        ) == [
            Axis(min=2, max=8, multiple=2),
            Axis(min=6, max=6, multiple=1),
            Axis(min=5, max=5, multiple=1),
            Axis(min=0, max=None, multiple=12),
        ]

    @pytest.mark.parametrize(
        ("dims", "more"),
        [
            ([6], {"constraints": Constraints(divisible=[(0, 0, 4)])}),
            (
                [None],
                {
                    "extents": [Extent(input=0, axis=0, min=1, opt=1, max=3)],
                    "constant_axes": [ConstantAxis(input=0, axis=0, extent=4)],
                },
            ),
        ],
    )
    def test_contradictions_are_refused(self, dims, more):
        with pytest.raises(FormatError, match="axis 0: no extent satisfies"):
            self.axes(dims, **more)


class TestTable:
    @pytest.mark.parametrize("make", [bundles.fold, bundles.split, bundles.gather])
    def test_deterministic(self, make):
        assert render_table(make().meta) == render_table(make().meta)

    @pytest.mark.parametrize("symbol", ["ytk_plugin", "a b", "x;", "1x", ""])
    def test_symbols_are_checked_before_they_become_text(self, symbol):
        meta = msgspec.structs.replace(bundles.fold().meta, launcher=Launcher(launch=symbol))
        with pytest.raises(FormatError, match="cannot be the kernel's symbol"):
            render_table(meta)
        meta = msgspec.structs.replace(bundles.fold().meta, launcher=Launcher(workspace=symbol))
        with pytest.raises(FormatError, match="cannot be the kernel's symbol"):
            render_table(meta)

    @pytest.mark.parametrize(
        "symbol", ["launch", "shape", "workspace", "kTable", "check_inputs", "elements", "memcmp_"]
    )
    def test_the_kernels_symbol_may_be_any_name_of_ours(self, symbol, tmp_path):
        meta = msgspec.structs.replace(bundles.split().meta, launcher=Launcher(launch=symbol, workspace=f"{symbol}_ws"))
        source = tmp_path / "t.cpp"
        source.write_text(render_table(meta))
        command = [
            "g++",
            "-std=c++17",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{include_dir()}",
            str(source),
        ]
        subprocess.run(command, check=True, timeout=600)

    @pytest.mark.parametrize(
        "value",
        [[1, -(2**63) + 1, 2**63 - 1], [], [0.5, float("inf")], 'text\n"', ""],
    )
    def test_any_baked_value_compiles(self, value, tmp_path):
        kind = AttributeType.STRING if isinstance(value, str) else AttributeType.INTS
        if isinstance(value, list) and any(isinstance(v, float) for v in value):
            kind = AttributeType.FLOATS
        meta = msgspec.structs.replace(
            bundles.fold().meta, attributes=[AttributeDecl(name="a", type=kind, value=value)]
        )
        source = tmp_path / "t.cpp"
        source.write_text(render_table(meta))
        command = [
            "g++",
            "-std=c++17",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{include_dir()}",
            str(source),
        ]
        subprocess.run(command, check=True, timeout=600)
