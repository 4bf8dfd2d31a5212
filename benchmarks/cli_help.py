"""``ytk --help`` against a bare interpreter: ``python -m benchmarks.cli_help``."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks._report import paired, ratio, show


def main() -> None:
    """Time both in turn, 15 pairs."""
    ytk = Path(sys.executable).with_name("ytk")
    ours, bare = paired([str(ytk), "--help"], [sys.executable, "-c", "pass"], runs=15)
    rows: list[dict[str, object]] = [
        {
            "command": name,
            "wall ms (median)": statistics.median(run.wall_s for run in runs) * 1e3,
            "wall ms (min)": min(run.wall_s for run in runs) * 1e3,
            "peak MiB": max(run.peak_mib for run in runs),
        }
        for name, runs in (("ytk --help", ours), ("python -c pass", bare))
    ]
    rows.append(
        {
            "command": "ratio (pairs)",
            "wall ms (median)": ratio([r.wall_s for r in ours], [r.wall_s for r in bare]),
            "wall ms (min)": "",
            "peak MiB": "",
        }
    )
    show("ytk --help against bare python", rows)


if __name__ == "__main__":
    main()
