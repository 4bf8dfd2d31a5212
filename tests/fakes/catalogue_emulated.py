"""Call a shipped CUDA kernel on the CPU emulation, in a process of its own: what is wrong with it may end that process.

``python -m fakes.catalogue_emulated LIBRARY CALLS`` reads ``CALLS`` (a pickle made by :func:`run_emulated`) and writes
``CALLS.out``.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ytk_core.abi import ctypes_abi as abi
from ytk_core.catalogue import Entry, plain_attributes
from ytk_gaia.emulation.build import thread_code

from fakes.plugin_calls import aligned, as_aligned, tensor

Array = np.ndarray[Any, Any]
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Call:
    """One call; ``outputs`` are shapes and dtypes."""

    inputs: list[Array]
    outputs: list[tuple[tuple[int, ...], str]]
    variant: int = 0
    order: int = 0


def run_emulated(
    library: Path, entry: Entry, attributes: Mapping[str, Any], calls: list[Call], directory: Path
) -> list[tuple[int, list[Array]]]:
    """Give the status and the outputs of every call.

    Raises:
        AssertionError: The process ended otherwise, with what the emulation said.
    """
    path = directory / "calls"
    plain = plain_attributes(attributes)
    ints, floats = ({name: plain[name] for name in names} for names in (entry.ints, entry.floats))
    given = [
        {
            "ints": ints,
            "floats": floats,
            "inputs": call.inputs,
            "outputs": call.outputs,
            "threads": thread_code(call.order, call.variant),
        }
        for call in calls
    ]
    path.write_bytes(pickle.dumps(given))
    command = [sys.executable, "-m", "fakes.catalogue_emulated", str(library), str(path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results: list[tuple[int, list[Array]]] = pickle.loads(path.with_suffix(".out").read_bytes())
    return results


def attributes_of(call: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The attributes as ytk_attr, and what they point to."""
    items = [(name, values, True) for name, values in call["ints"].items()]
    items += [(name, values, False) for name, values in call["floats"].items()]
    array, keep = (abi.Attr * max(1, len(items)))(), []
    for place, (name, values, is_int) in zip(array, items, strict=False):
        keep.append(((ctypes.c_int64 if is_int else ctypes.c_double) * len(values))(*values))
        place.name, place.count, place.type = name.encode(), len(values), 1 if is_int else 2
        if is_int:
            place.ints = keep[-1]
        else:
            place.floats = keep[-1]
    return array, keep


def launch(loaded: ctypes.CDLL, call: Mapping[str, Any]) -> tuple[int, list[Array]]:
    """Ask for the workspace, launch; outputs and workspace hold garbage before."""
    attrs, _keep = attributes_of(call)
    inputs = [as_aligned(values, values.dtype) for values in call["inputs"]]
    outputs = [aligned(shape, np.dtype(kind)) for shape, kind in call["outputs"]]
    for output in outputs:
        output.view(np.uint8)[...] = 0xC5
    ins, outs = (abi.Tensor * len(inputs))(*map(tensor, inputs)), (abi.Tensor * len(outputs))(*map(tensor, outputs))
    ctx = abi.Context(size=ctypes.sizeof(abi.Context), abi_version=1, threads=call["threads"])
    ctx.attrs, ctx.attr_count = attrs, len(call["ints"]) + len(call["floats"])
    size = loaded.ytk_emulated_workspace(ctypes.byref(ctx), ins, len(inputs), outs, len(outputs))
    if size < 0:
        return -size, []
    workspace = aligned((max(size, 1),), np.uint8)
    workspace[...] = 0xA7
    ctx.workspace, ctx.workspace_bytes = workspace.ctypes.data, size
    status = loaded.ytk_emulated_launch(ctypes.byref(ctx), ins, len(inputs), outs, len(outputs))
    return status, [np.array(output) for output in outputs]


def main(library: str, path: Path) -> None:
    """Run all calls of a file."""
    loaded = ctypes.CDLL(library)
    loaded.ytk_emulated_workspace.restype = ctypes.c_int64
    results = [launch(loaded, call) for call in pickle.loads(path.read_bytes())]
    path.with_suffix(".out").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
