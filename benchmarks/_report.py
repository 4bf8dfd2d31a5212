"""Conditions and tables shared by the benchmarks. Every benchmark prints figures, a peer and a ratio; none is a test."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One timed child process: wall seconds, CPU seconds (user + system), peak resident MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def time_command(argv: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> Run:
    """Run a command to its end and give its own cost from the kernel's accounting.

    Raises:
        RuntimeError: It exited with another code than 0; the message has the end of its output.
    """
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=cwd)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        msg = f"{argv} exited {process.returncode}: {output[-2000:].decode(errors='replace')}"
        raise RuntimeError(msg)
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def paired(
    ours: Sequence[str], peer: Sequence[str], *, runs: int, cwd: Path | None = None
) -> tuple[list[Run], list[Run]]:
    """Run two commands in turn, ours first, after one uncounted run of each."""
    time_command(ours, cwd=cwd)
    time_command(peer, cwd=cwd)
    a: list[Run] = []
    b: list[Run] = []
    for _ in range(runs):
        a.append(time_command(ours, cwd=cwd))
        b.append(time_command(peer, cwd=cwd))
    return a, b


def ratio(ours: Sequence[float], peer: Sequence[float]) -> str:
    """Give the median of the ratios pair by pair, with their range."""
    pairs = [a / b for a, b in zip(ours, peer, strict=True)]
    return f"{statistics.median(pairs):.2f} ({min(pairs):.2f}..{max(pairs):.2f})"


def conditions() -> dict[str, str]:
    """Give what a reader needs to judge the figures."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": f"{model}, {os.cpu_count()} cores",
        "load": " ".join(f"{x:.2f}" for x in os.getloadavg()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
    }


def show(title: str, rows: Sequence[dict[str, object]]) -> None:
    """Print one benchmark as a Markdown table and its conditions, ready for RESULTS.md; JSON too with ``--json``."""
    if "--json" in sys.argv:
        print(json.dumps({"title": title, "rows": rows, "conditions": conditions()}, indent=2))
        return
    print(f"### {title}\n")
    columns = list(rows[0])
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(f"{row[c]:.3f}" if isinstance(row[c], float) else str(row[c]) for c in columns) + " |")
    print("\nConditions: " + "; ".join(f"{key} {value}" for key, value in conditions().items()) + "\n")
