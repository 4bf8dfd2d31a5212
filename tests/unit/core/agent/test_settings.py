from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from ytk_core.errors import FormatError, UserError
from ytk_core.settings import load_toml, parse_toml


class Launch(enum.StrEnum):
    DRIVER = "driver"
    CUDART = "cudart"


class Host(msgspec.Struct, frozen=True):
    compiler: Path
    flags: tuple[str, ...] = ()
    level: Literal["cpuv2", "cpuv3"] = "cpuv2"


class Settings(msgspec.Struct, frozen=True):
    name: str
    host: Host
    slots: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    launch: Launch = Launch.DRIVER
    timeout_s: float | None = None


GOOD = """
name = "orin"
slots = 3
[host]
compiler = "/usr/bin/g++"
flags = ["-O3", "-g"]
"""


def test_a_file_becomes_a_struct(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(GOOD)
    assert load_toml(path, Settings) == Settings(
        name="orin", slots=3, host=Host(compiler=Path("/usr/bin/g++"), flags=("-O3", "-g"))
    )


BAD = [
    # text, what the message names, what the hint allows
    (GOOD + "colour = 1", "unknown key host.colour = 1", "compiler, flags, level"),
    ("colour = 1\n" + GOOD, "unknown key colour = 1", "name, host, slots, launch, timeout_s"),
    ("slots = 3", "Object missing required field `name`", "a table with name, host"),
    (GOOD.replace("slots = 3", "slots = 0"), "slots = 0", "a whole number (ge 1, le 64)"),
    (GOOD.replace("slots = 3", "slots = 'many'"), "slots = 'many'", "a whole number"),
    (GOOD + 'level = "cpuv9"', "host.level = 'cpuv9'", "'cpuv2', 'cpuv3'"),
    (GOOD.replace("[host]", 'launch = "magic"\n[host]'), "launch = 'magic'", "'driver', 'cudart'"),
    (GOOD.replace("[host]", 'timeout_s = "1"\n[host]'), "timeout_s = '1'", "a number"),
    (GOOD.replace('"-g"', "7"), "host.flags[1] = 7", "a string"),
    (GOOD.replace('["-O3", "-g"]', '"-O3"'), "host.flags = '-O3'", "a list, each a string"),
    ("name = ", "not TOML", ""),
    ("name = 'x'\nhost = 3", "host = 3", "a table with compiler"),
]


@pytest.mark.parametrize(("text", "message", "hint"), BAD)
def test_what_is_wrong_is_named(text: str, message: str, hint: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_toml(text, Settings, origin="orin.toml")
    assert "orin.toml" in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.code == "bad_config"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_toml(tmp_path / "none.toml", Settings, code="toolchain")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"name = '\xe4'")
    with pytest.raises(FormatError, match="UTF-8") as caught:
        load_toml(path, Settings, code="toolchain")
    assert caught.value.code == "toolchain"
