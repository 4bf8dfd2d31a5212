"""Time torch on this host, in a process of its own, for the torch row of ``verify``.

A separate process: the exporter leaves threads and caches behind that made sub-millisecond kernels measure a hundred
times too long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ytk_core.formats.benchmark import BenchmarkRow

_START_S = 300.0
"""Allowance for starting Python, importing torch and building the model; not part of the budget."""
_MAX_ITERATIONS = 200
ROW_NAME = "torch host (cpu)"


def time_torch(model_path: Path, *, budget_s: float) -> tuple[BenchmarkRow | None, str]:
    """Measure forward on the example inputs.

    Args:
        model_path: The user's model file.
        budget_s: Seconds of running forward, warm-up included; one call more is made if it takes longer.

    Returns:
        The row in milliseconds, and "" or the reason why there is none.
    """
    command = [sys.executable, "-m", "ytk_client.frontend.timing", str(model_path), str(budget_s)]
    # Waiting threads must sleep: spinning ones on a loaded host took 2560 ms instead of 22.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S + 10 * budget_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"timing torch took longer than {_START_S + 10 * budget_s:.0f} s and was stopped"
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return None, f"timing torch failed: {last[0]}"
    return msgspec.json.decode(done.stdout, type=BenchmarkRow), ""


def measure(model_path: Path, budget_s: float) -> BenchmarkRow:
    """Measure in this process; what :func:`time_torch` starts."""
    from ytk_client.frontend.load_model import load_model

    model = load_model(model_path)
    start = time.perf_counter()
    model.call(model.flat_args)
    first_s = time.perf_counter() - start
    for _ in range(2 if first_s * 4 < budget_s else 0):
        model.call(model.flat_args)
    times_ms: list[float] = []
    while not times_ms or (time.perf_counter() - start < budget_s and len(times_ms) < _MAX_ITERATIONS):
        before = time.perf_counter()
        model.call(model.flat_args)
        times_ms.append((time.perf_counter() - before) * 1e3)
    return BenchmarkRow.from_samples(ROW_NAME, times_ms)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure(Path(sys.argv[1]), float(sys.argv[2]))))
