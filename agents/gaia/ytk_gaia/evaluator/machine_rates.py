"""How fast this machine has been seen to move memory: an append-only file of records, one per measurement.

A floor below which no time is believed must come from the best that the machine can do, and a machine that is busy today shows
less than it can. So rates are kept: per machine, number of threads and size of what was moved, and the best one counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

import msgspec

RATES_FILE = "machine-rates.jsonl"


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    ``machine``: device and processor model. ``size_class``: base-2 logarithm of the bytes, rounded down.
    ``bytes_per_ns``: what was moved (read or written, each byte counted once) by the wall time of the fastest call.
    """

    machine: str
    threads: int
    size_class: int
    bytes_per_ns: float


def size_class(size_bytes: int) -> int:
    """Give the class of a size: rates of sizes within a factor of two are alike."""
    return max(0, size_bytes.bit_length() - 1)


def machine_id(device_uid: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Give whose rates they are: the device, and the processor's model, since a virtual machine may wake up on another one."""
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
        if found:
            return f"{device_uid or 'this machine'}, {found[1].strip()}"
    return device_uid or "this machine"


def best_rate(path: Path | None, machine: str, threads: int, size: int) -> float:
    """Give the best rate on record, in bytes per nanosecond; 0 where there is none.

    A line that a killed writer left half-written is passed over.
    """
    if path is None or not path.is_file():
        return 0.0
    best = 0.0
    for line in path.read_bytes().splitlines():
        try:
            rate = msgspec.json.decode(line, type=Rate)
        except msgspec.DecodeError:
            continue
        if (rate.machine, rate.threads, rate.size_class) == (machine, threads, size_class(size)):
            best = max(best, rate.bytes_per_ns)
    return best


def remember(path: Path | None, rate: Rate) -> None:
    """Append a record. Nothing is ever changed or removed; evaluations of one machine may append at the same time."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    line = msgspec.json.encode(rate) + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # the rest of a half-written line is nobody's record
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
