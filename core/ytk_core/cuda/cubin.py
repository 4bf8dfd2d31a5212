"""What a cubin says about itself: target, ABI, kernels and what they use; read from the ELF file, nothing is loaded."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

EM_CUDA = 190
# (ELF OS/ABI, ABI version) -> the newest CUDA major that writes it. Drivers read the ABI of their own CUDA and older ones.
ABI_OF_CUDA = {11: (0x33, 7), 12: (0x33, 7), 13: (0x41, 8)}
_EIATTR_REGCOUNT, _EIATTR_FRAME_SIZE = 0x2F, 0x11
_EIFMT_SVAL = 0x04


class NotCubinError(Exception):
    """The bytes are no cubin; the text says why."""


class KernelUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one kernel needs of the GPU. ``None``: the compiler that wrote the cubin does not say."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    spill_bytes: int | None = None
    """Stores and loads together, from the compiler's messages."""


class Cubin(msgspec.Struct, frozen=True, kw_only=True):
    """One cubin."""

    sm: int
    os_abi: int
    abi_version: int
    kernels: dict[str, KernelUse]
    undefined: tuple[str, ...]
    """Functions and variables that another cubin would have to define."""


def read_cubin(content: bytes) -> Cubin:
    """Read a cubin.

    Raises:
        NotCubinError: It is none, or damaged.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        return _read(ELFFile(io.BytesIO(content)))
    except ELFError as err:
        raise NotCubinError(f"no ELF file: {err}") from err
    except NotCubinError:
        raise
    except Exception as err:
        # pyelftools parses lazily, and what it raises on a damaged table is whatever it trips over there.
        raise NotCubinError(f"a damaged cubin: {type(err).__name__}: {err}") from err


def _read(elf: Any) -> Cubin:
    machine = elf["e_machine"]
    if machine not in {EM_CUDA, "EM_CUDA"}:
        raise NotCubinError(f"an ELF file for {machine}, not for a GPU")
    ident, flags = elf["e_ident"], int(elf["e_flags"])
    # pyelftools names the numbers it knows: 0x33 and 0x41 are not among them, but 97 and others are.
    os_abi = ident["EI_OSABI"] if isinstance(ident["EI_OSABI"], int) else -1
    # CUDA 13 moved the compute capability one byte up.
    sm = (flags >> 8 if os_abi == ABI_OF_CUDA[13][0] else flags) & 0xFF
    symbols = elf.get_section_by_name(".symtab")
    names = [] if symbols is None else [(s.name, s) for s in symbols.iter_symbols()]
    registers, frames = _attributes(elf)
    kernels: dict[str, KernelUse] = {}
    for index, (name, symbol) in enumerate(names):
        # STO_CUDA_ENTRY: a function that the host can launch.
        entry = int(_other(elf, symbols, index)) & 0x10
        section = elf.get_section_by_name(f".text.{name}")
        if symbol["st_info"]["type"] != "STT_FUNC" or not entry or section is None:
            continue
        shared = elf.get_section_by_name(f".nv.shared.{name}")
        kernels[name] = KernelUse(
            registers=registers.get(index, section["sh_info"] >> 24),
            stack_bytes=frames.get(index, 0),
            shared_bytes=0 if shared is None else int(shared["sh_size"]),
        )
    undefined = tuple(
        sorted(
            name for name, s in names if name and s["st_shndx"] == "SHN_UNDEF" and s["st_info"]["bind"] == "STB_GLOBAL"
        )
    )
    return Cubin(sm=sm, os_abi=os_abi, abi_version=int(ident["EI_ABIVERSION"]), kernels=kernels, undefined=undefined)


def _other(elf: Any, symbols: Any, index: int) -> int:
    """Give ``st_other`` as a byte: pyelftools splits it into fields that CUDA does not use."""
    elf.stream.seek(symbols["sh_offset"] + index * symbols["sh_entsize"] + 5)
    return int(elf.stream.read(1)[0])


def _attributes(elf: Any) -> tuple[dict[int, int], dict[int, int]]:
    """Give registers and stack frame by symbol index, from ``.nv.info``: entries of (format, attribute, size), payload."""
    section = elf.get_section_by_name(".nv.info")
    data = b"" if section is None else section.data()
    registers: dict[int, int] = {}
    frames: dict[int, int] = {}
    at = 0
    while at + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind != _EIFMT_SVAL:
            continue
        if size >= 8 and at + 8 <= len(data):
            symbol, value = struct.unpack_from("<II", data, at)
            if attribute == _EIATTR_REGCOUNT:
                # The upper bits have other meanings since CUDA 13.
                registers[symbol] = value & 0xFF
            elif attribute == _EIATTR_FRAME_SIZE:
                frames[symbol] = value
        at += size
    return registers, frames


_COMPILING = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")


def with_compiler_notes(kernels: Mapping[str, KernelUse], log: str) -> dict[str, KernelUse]:
    """Add what only the compiler's messages (``ptxas -v``) say: spills, and shared memory without what CUDA reserves."""
    found = dict(kernels)
    current = ""
    for line in log.splitlines():
        if match := _COMPILING.search(line):
            current = match[1]
        if current not in found:
            continue
        if match := _SPILLS.search(line):
            found[current] = msgspec.structs.replace(found[current], spill_bytes=int(match[1]) + int(match[2]))
        if match := _SHARED.search(line):
            found[current] = msgspec.structs.replace(found[current], shared_bytes=int(match[1]))
    return found
