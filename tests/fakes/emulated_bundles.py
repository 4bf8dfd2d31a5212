"""Build a CUDA bundle for the CPU emulation and call it in a process of its own; what the emulation says is the answer too."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_gaia.emulation.build import Check, Emulator, thread_code

TESTS = Path(__file__).resolve().parents[1]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Answer:
    """What a call gave: a status (0: well; None: the process ended), outputs, and what was said."""

    status: int | None
    outputs: list[Array]
    said: str


def build(emulator: Emulator, bundle: KernelBundle, directory: Path, check: Check = Check.NOTHING) -> Path:
    """Compile a bundle; fails with the compiler's messages."""
    directory.mkdir(parents=True)
    built = emulator.build(bundle, directory, (check,))[check]
    assert built.library is not None, built.log[:3000]
    return built.library


def call(
    library: Path, inputs: list[Array], outputs: list[tuple[tuple[int, ...], str]], variant: int = 0, order: int = 0
) -> Answer:
    """Call a library once; outputs are shapes and dtypes, and hold garbage before."""
    path = library.with_suffix(".calls")
    given = {"ints": {}, "floats": {}, "inputs": inputs, "outputs": outputs, "threads": thread_code(order, variant)}
    path.write_bytes(pickle.dumps([given]))
    command = [sys.executable, "-m", "fakes.catalogue_emulated", str(library), str(path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        return Answer(None, [], done.stderr)
    ((status, found),) = pickle.loads(path.with_suffix(".out").read_bytes())
    return Answer(status, found, done.stderr)
