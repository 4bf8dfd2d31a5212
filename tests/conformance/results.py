"""The figures of a run: JSON for machines, a table for people."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from conformance.outcome import EntryFinding, Outcome

SCHEMA_VERSION = 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its settings, the versions, and what was found.

    ``part`` K/N: it was about every N-th entry only, from the K-th; ``left``: entries that the run did not get to;
    ``note``: what a reader of the figures has to know.
    """

    schema_version: int = SCHEMA_VERSION
    profile: str
    dtype: str
    samples: int
    part: str = "1/1"
    versions: dict[str, str]
    entries: tuple[EntryFinding, ...]
    left: tuple[str, ...] = ()
    note: str = ""


def versions() -> dict[str, str]:
    """Give what the figures depend on."""
    import onnx
    import onnxruntime
    import onnxscript
    import torch

    return {
        "torch": str(torch.__version__),
        "onnx": onnx.__version__,
        "onnxscript": onnxscript.__version__,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _commit() -> str:
    """Give the commit that is examined, "" outside of a git checkout."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def counts(run: Run) -> dict[str, int]:
    """Give the number of entries by outcome, all outcomes named."""
    found = Counter(entry.outcome for entry in run.entries)
    return {str(outcome): found[outcome] for outcome in Outcome}


def random(run: Run) -> list[EntryFinding]:
    """Give the entries that draw random numbers; their outcome is that with ``--random-inputs``."""
    return [entry for entry in run.entries if any(sample.random for sample in entry.samples)]


def captured(run: Run) -> int:
    """Give the number of entries that torch.export captures at least one sample of."""
    return len(run.entries) - counts(run)[Outcome.BLOCKED]


def read(path: Path) -> Run:
    """Read a result file."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def write(path: Path, run: Run) -> None:
    """Write a result file, one entry a line, so that a change of one shows as one line."""
    head: dict[str, Any] = msgspec.to_builtins(run)
    rows = head.pop("entries")
    text = msgspec.json.format(msgspec.json.encode(head | {"entries": []}), indent=1).decode()
    lines = ",\n  ".join(msgspec.json.encode(_terse(row)).decode() for row in rows)
    opening, closing = text.rsplit('"entries": []', 1)
    path.write_text(f'{opening}"entries": [\n  {lines}\n ]{closing}\n')


def _terse(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is empty, and what differs from run to run."""
    samples = [
        {key: value for key, value in sample.items() if value not in ("", 0, False, [], ()) and key != "cpu_s"}
        for sample in row["samples"]
    ]
    return row | {"samples": samples}


def reasons(run: Run, outcome: Outcome) -> list[tuple[str, list[str]]]:
    """Group the entries of an outcome by the code and words of their worst sample, most frequent first."""
    groups: dict[str, list[str]] = {}
    for entry in run.entries:
        if entry.outcome is outcome:
            sample = next(each for each in entry.samples if each.outcome is outcome)
            words = f"{sample.code}: {sample.reason}"[:160]
            groups.setdefault(words, []).append(entry.name)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def table(runs: Sequence[Run]) -> str:
    """Give the counts of several runs as a text table."""
    head = ["profile", "dtype", "entries", "captured", *Outcome, "left"]
    rows = [
        [run.profile, run.dtype, len(run.entries), captured(run), *counts(run).values(), len(run.left)] for run in runs
    ]
    cells = [head, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
