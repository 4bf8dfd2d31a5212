"""Facts of an ELF shared library, read and never loaded. pyelftools says most; without it only the header is read."""

from __future__ import annotations

import importlib.util
import io
import struct
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.errors import FormatError

_MAX_BYTES = 512 * 1024 * 1024
_MACHINES = {3: "x86", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}
_ET_DYN = 3
CPU_OF_MACHINE = {"x86-64": "amd64", "aarch64": "arm64"}
"""The arch spec's ``cpu`` of an ELF machine."""


class ElfFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says about itself. ``complete`` is False where only the header was read."""

    machine: str
    bits: int
    shared: bool
    complete: bool = False
    needed: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    """Symbol versions that it needs of the C and C++ libraries: the newest of each family."""
    exported: tuple[str, ...] = ()
    device_code: bool = False
    search_path: tuple[str, ...] = ()


def read_elf(path: Path) -> ElfFacts:
    """Read the facts.

    Raises:
        FormatError: Code ``bad_elf``: truncated or damaged.
    """
    with path.open("rb") as stream:
        data = stream.read(_MAX_BYTES)
    header = _header(path, data)
    if importlib.util.find_spec("elftools") is None:
        return header
    from elftools.elf.elffile import ELFFile

    try:
        # In memory: a damaged table then leads out of the bytes, never to an error of the file system.
        return _full(header, ELFFile(io.BytesIO(data)))
    except Exception as err:  # pyelftools parses lazily and raises whatever it trips over in a damaged table
        raise _bad(path, f"{type(err).__name__}: {err}") from err


def _bad(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path}: not a shared library, or a damaged one: {why}",
        code="bad_elf",
        hint="Copy the file again, or build it again with `ytk embedded build-plugin`.",
    )


def _header(path: Path, data: bytes) -> ElfFacts:
    if len(data) < 20 or data[4] not in {1, 2} or data[5] not in {1, 2}:
        raise _bad(path, "the ELF header is cut short or wrong")
    kind, machine = struct.unpack_from("<HH" if data[5] == 1 else ">HH", data, 16)
    return ElfFacts(machine=_MACHINES.get(machine, f"machine {machine}"), bits=32 * data[4], shared=kind == _ET_DYN)


def _full(header: ElfFacts, elf: Any) -> ElfFacts:
    tags = [tag for segment in elf.iter_segments("PT_DYNAMIC") for tag in segment.iter_tags()]
    symbols = elf.get_section_by_name(".dynsym")
    exported = [
        symbol.name
        for symbol in (symbols.iter_symbols() if symbols is not None else ())
        if symbol.name and symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
    ]
    sections = [section.name for section in elf.iter_sections()]
    return msgspec.structs.replace(
        header,
        complete=True,
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        versions=_newest(elf.get_section_by_name(".gnu.version_r")),
        exported=tuple(sorted(set(exported))),
        device_code=any(name.startswith((".nv_fatbin", ".nvFatBin", ".ytk_cubin")) for name in sections),
        search_path=tuple(
            str(getattr(tag, "rpath", "") or getattr(tag, "runpath", ""))
            for tag in tags
            if tag.entry.d_tag in {"DT_RPATH", "DT_RUNPATH"}
        ),
    )


def _newest(section: Any) -> tuple[str, ...]:
    newest: dict[str, tuple[int, ...]] = {}
    for _, versions in section.iter_versions() if section is not None else ():
        for version in versions:
            family, _, number = version.name.partition("_")
            if number and all(part.isdigit() for part in number.split(".")):
                newest[family] = max(newest.get(family, ()), tuple(map(int, number.split("."))))
    return tuple(f"{family}_{'.'.join(map(str, number))}" for family, number in sorted(newest.items()))
