"""Calls compiled kernels for :mod:`ytk_gaia.coverage`: ``coverage_child.py MANIFEST``. Standard library only.

Without torch in the process, so that a kernel that crashes ends this process alone. One line per call: ``<index> <status>``.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from pathlib import Path
from typing import Any

from ytk_core.abi.ctypes_abi import ABI_VERSION, Context, Tensor

_ALIGNMENT = 64


def _tensors(base: int, described: list[dict[str, Any]]) -> Any:
    array = (Tensor * max(1, len(described)))()
    for tensor, facts in zip(array, described, strict=False):
        tensor.data, tensor.dtype, tensor.rank = base + facts["offset"], facts["dtype"], len(facts["dims"])
        tensor.scale = 1.0
        for axis, extent in enumerate(facts["dims"]):
            tensor.dims[axis] = extent
    return array


def main(manifest: Path) -> None:
    """Call every kernel of the manifest once; outputs stay in its data file."""
    task = json.loads(manifest.read_text(encoding="utf-8"))
    library = ctypes.CDLL(task["library"])
    with Path(task["data"]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        base = ctypes.addressof(ctypes.c_char.from_buffer(data))
        for call in task["calls"]:
            room = int(call["workspace"])
            memory = ctypes.create_string_buffer(room + _ALIGNMENT)
            start = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
            context = Context(size=ctypes.sizeof(Context), abi_version=ABI_VERSION, threads=1)
            context.workspace, context.workspace_bytes = start, room
            ins, outs = _tensors(base, call["inputs"]), _tensors(base, call["outputs"])
            launch = getattr(library, call["symbol"])
            status = launch(ctypes.byref(context), ins, len(call["inputs"]), outs, len(call["outputs"]))
            print(call["index"], status, flush=True)  # noqa: T201 -- the answer, read by the parent
        data.flush()
        sys.stdout.flush()
        # The ctypes view pins the map; the process ends here anyway, and the pages are shared with the file.
        import os

        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
