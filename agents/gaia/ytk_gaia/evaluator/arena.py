"""The memory that a candidate works in: one shared file, every buffer between canaries and forbidden pages.

The judge maps it all. The candidate's process maps it too, with the pages beside every buffer forbidden and the inputs read-only,
so that most mistakes end in a fault at an address that says what they were. What such pages cannot catch (the odd bytes between
a buffer and the end of its page) holds a canary that the judge compares after every call.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

PAGE = 4096
ALIGNMENT = 64

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Placement(enum.Enum):
    """Which end of a buffer touches a forbidden page."""

    END = "end"
    START = "start"


class Kind(enum.Enum):
    """What a buffer is for."""

    INPUT = "input"
    OUTPUT = "output"
    WORKSPACE = "workspace"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Buffer:
    """One buffer: ``[offset, offset + size)`` inside the pages ``[first, last)`` of the file."""

    kind: Kind
    index: int
    offset: int
    size: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """Word for reports."""
        return f"{self.kind.value} {self.index}" if self.kind in {Kind.INPUT, Kind.OUTPUT} else self.kind.value


@dataclass(frozen=True)
class Layout:
    """Where everything is. ``guards``: forbidden page ranges (start, length)."""

    buffers: tuple[Buffer, ...]
    guards: tuple[tuple[int, int], ...]
    size: int

    def of(self, kind: Kind) -> list[Buffer]:
        """Give the buffers of one kind, in order."""
        return [b for b in self.buffers if b.kind is kind]

    def describe(self, offset: int) -> tuple[Kind | None, str]:
        """Say what an offset is part of: a buffer's pages, or the forbidden page beside one (kind None)."""
        for buffer in self.buffers:
            if buffer.first <= offset < buffer.last:
                return buffer.kind, buffer.name
        for buffer in self.buffers:
            if buffer.first - PAGE <= offset < buffer.first:
                return None, f"{buffer.offset - offset} bytes before {buffer.name}"
            if buffer.last <= offset < buffer.last + PAGE:
                return None, f"{offset - buffer.offset - buffer.size} bytes after {buffer.name}"
        return None, f"offset {offset}"


def _round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


def plan(
    inputs: Sequence[int], outputs: Sequence[int], workspace: int, placement: Placement, alignment: int = ALIGNMENT
) -> Layout:
    """Lay out buffers of the given sizes in bytes, with room for a snapshot of each output.

    Args:
        inputs: Sizes.
        outputs: Sizes.
        workspace: Its size; 0: none.
        placement: Which end of each buffer touches a forbidden page.
        alignment: Of inputs and outputs, in bytes. Where the end touches the forbidden page, no buffer is aligned better than
            this: a kernel that needs more than its contract asks for shows here. The workspace has the ABI's alignment.
    """
    wanted = [(Kind.INPUT, i, n) for i, n in enumerate(inputs)] + [(Kind.OUTPUT, i, n) for i, n in enumerate(outputs)]
    wanted += [(Kind.WORKSPACE, 0, workspace)] if workspace else []
    wanted += [(Kind.SNAPSHOT, i, n) for i, n in enumerate(outputs)]
    buffers, guards, at = [], [], 0
    for kind, index, size in wanted:
        guards.append((at, PAGE))
        first = at + PAGE
        unit = alignment if kind in {Kind.INPUT, Kind.OUTPUT} else ALIGNMENT
        # Room for one step of the alignment besides: a buffer of whole pages too has to be moved off the page's own alignment.
        last = first + _round_up(_round_up(max(size, 1), unit) + unit, PAGE)
        # A kernel is promised aligned buffers, so a buffer of odd size cannot end exactly at a page.
        offset = last - _round_up(max(size, 1), unit) if placement is Placement.END else first
        if placement is Placement.END and unit == alignment and offset % (2 * unit) == 0:
            offset -= unit
        buffers.append(Buffer(kind, index, offset, size, first, last))
        at = last
    guards.append((at, PAGE))
    return Layout(tuple(buffers), tuple(guards), at + PAGE)


def moved(layout: Layout, shift: int) -> Layout:
    """Give a layout with inputs and outputs moved by some bytes, less than one step of the alignment, inside their pages."""

    def place(buffer: Buffer) -> Buffer:
        return replace(buffer, offset=buffer.offset + shift) if buffer.kind in {Kind.INPUT, Kind.OUTPUT} else buffer

    return replace(layout, buffers=tuple(place(buffer) for buffer in layout.buffers)) if shift else layout


class Arena:
    """The judge's view of the shared file.

    Args:
        layout: Where everything is.
        descriptor: An empty memory file; sized and sealed here, so that nobody can shrink it under the judge.
        canary: Byte that fills everything between buffers and their pages.

    Raises:
        OSError: The descriptor was tampered with.
    """

    def __init__(self, layout: Layout, descriptor: int, canary: int) -> None:
        self.layout = layout
        self._canary = canary
        os.ftruncate(descriptor, layout.size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        self._map = mmap.mmap(descriptor, layout.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._fill()

    def _fill(self) -> None:
        for buffer in self.layout.buffers:
            self._bytes[buffer.first : buffer.last] = self._canary

    def use(self, layout: Layout) -> None:
        """Put buffers in other places inside the same pages, with canaries anew; what was in them is lost."""
        if layout != self.layout:
            self.layout = layout
            self._fill()

    def view(self, buffer: Buffer) -> Bytes:
        """Give the bytes of a buffer; writing to them writes to the arena."""
        return self._bytes[buffer.offset : buffer.offset + buffer.size]

    def damaged(self) -> str:
        """Name the first buffer whose canaries were written over, or give an empty string."""
        for buffer in self.layout.buffers:
            before = self._bytes[buffer.first : buffer.offset]
            after = self._bytes[buffer.offset + buffer.size : buffer.last]
            if not ((before == self._canary).all() and (after == self._canary).all()):
                return buffer.name
        return ""

    def close(self) -> None:
        """Unmap."""
        self._bytes = np.empty(0, dtype=np.uint8)
        self._map.close()


def new_descriptor() -> int:
    """Give an empty memory file that can be sealed."""
    return os.memfd_create("ytk-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
