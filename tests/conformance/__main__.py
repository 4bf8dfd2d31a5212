"""``python -m conformance``: examine torch's operator database; ``make conformance`` sets the path.

Examples:
    python -m conformance --profile onnxruntime --out tests/conformance/results/onnxruntime-float32.json
    python -m conformance --only 'fft_.*' --profile trt86
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from conformance import opdb, results
from conformance.outcome import EntryFinding, Outcome
from conformance.pool import Job, Pool

_STRIDE = 8


def main() -> int:
    """Run what the command line asks for; 1 where something is silently wrong, crashes or hangs."""
    options = _parser().parse_args()
    names = [name for name in opdb.entries() if re.fullmatch(options.only, name)]
    part, parts = (int(number) for number in options.slice.split("/"))
    names = names[part - 1 :: parts]
    # The database is sorted by family; in strides, a run that is cut short has still seen all of them.
    names = [name for first in range(_STRIDE) for name in names[first::_STRIDE]]
    known = {}
    if options.resume and options.out is not None and options.out.exists():
        known = {entry.name: entry for entry in results.read(options.out).entries}
        if options.redo:
            again = {name for name in names if name in known and re.fullmatch(options.redo, known[name].outcome)}
            known = {name: entry for name, entry in known.items() if name not in again}
    jobs = [
        Job(name, options.dtype, options.profile, options.samples)
        for name in names
        if name not in known and _has_dtype(name, options.dtype)
    ]
    found = dict(known)
    start = time.monotonic()

    def save() -> results.Run:
        ordered = tuple(found[name] for name in sorted(found))
        left = tuple(sorted(job.entry for job in jobs if job.entry not in found))
        run = results.Run(
            profile=options.profile,
            dtype=options.dtype,
            samples=options.samples,
            part=options.slice,
            versions=results.versions(),
            entries=ordered,
            left=left,
        )
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            results.write(options.out, run)
        return run

    def done(finding: EntryFinding) -> None:
        found[finding.name] = finding
        bad = finding.outcome in {Outcome.WRONG, Outcome.CRASH, Outcome.HANG}
        if bad or options.verbose:
            sample = next((each for each in finding.samples if each.outcome is finding.outcome), None)
            words = f"{sample.code}: {sample.reason}" if sample else "no samples"
            print(f"{finding.outcome:8} {finding.name}  {words[:140]}", flush=True)
        if len(found) % 20 == 0:
            save()
            print(f"{len(found)} of {len(known) + len(jobs)}, {time.monotonic() - start:.0f} s", flush=True)

    pool = Pool(min(options.workers, max(len(jobs), 1)), options.limit)
    try:
        pool.run(jobs, done)
    finally:
        pool.close()
        run = save()
    print(results.table([run]))
    counts = results.counts(run)
    return 1 if any(counts[outcome] for outcome in (Outcome.WRONG, Outcome.CRASH, Outcome.HANG)) else 0


def _has_dtype(name: str, dtype: str) -> bool:
    import torch

    return opdb.dtype_for(opdb.entries()[name], getattr(torch, dtype)) is not None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("--profile", default="onnxruntime", help="target profile or arch spec")
    parser.add_argument("--dtype", default="float32", help="a dtype of torch")
    parser.add_argument("--samples", type=int, default=2, help="first samples of each entry")
    parser.add_argument("--only", default=".*", help="regular expression over entry names")
    parser.add_argument("--slice", default="1/1", help="K/N: every N-th entry, from the K-th")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="processor seconds a sample may take")
    parser.add_argument("--out", type=Path, help="result JSON, written while the run goes on")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    parser.add_argument("--redo", default="", help="with --resume: outcomes (regular expression) to examine again")
    parser.add_argument("--verbose", action="store_true", help="one line per entry")
    return parser


if __name__ == "__main__":
    sys.exit(main())
