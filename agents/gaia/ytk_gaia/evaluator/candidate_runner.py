"""The candidate's process: ``candidate_runner.py ABI_DIR LIBRARY ARENA_FD``. Standard library only; run as a bare script.

``ABI_DIR`` has ``ctypes_abi.py`` (:data:`ytk_core.abi.CTYPES_DIR`), which is standard library only too.

It knows no expected value and gives no verdict. It calls the kernel when told to, copies the outputs aside at once, and
says how long the call took; the judge decides from the memory it shares. Nothing in this process can be trusted once the
library is loaded, this file's answers included.

Protocol, one line each: the judge writes ``map <json>`` once and ``go <nonce>`` per call; answers are ``loaded <workspace bytes>``,
``mapped``, and ``done <nonce> <status> <nanoseconds>``. ``cold <nonce>`` is a call after a walk through more memory than caches hold;
``skip <nonce>`` is no call at all: it waits a moment and answers, so that the judge sees what appears without one; ``try <nonce>
<i> <axis> <extent>`` is a call in which input i claims another extent.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from typing import Any

_SKIP_S = 0.005  # a thread that does the work by itself would have had as long between two real calls
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _protect(address: int, length: int, protection: int) -> None:
    if _libc.mprotect(address, length, protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def _tensors(abi: Any, base: int, described: list[dict[str, object]]) -> Any:
    array = (abi.Tensor * max(1, len(described)))()
    for tensor, facts in zip(array, described, strict=False):
        dims = facts["dims"]
        assert isinstance(dims, list)
        tensor.data = base + int(str(facts["offset"]))
        tensor.dtype = int(str(facts["dtype"]))
        tensor.rank = len(dims)
        tensor.scale = 1.0
        for axis, extent in enumerate(dims):
            tensor.dims[axis] = extent
    return array


def _answer(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode() + b"\n")


def main(abi_dir: str, library_path: str, arena: int) -> None:
    """Serve one judge until standard input ends."""
    sys.path.insert(0, abi_dir)
    import ctypes_abi as abi  # type: ignore[import-not-found]  # found only by a bare interpreter

    # Whatever the library prints goes to the log; answers go through a descriptor of their own.
    answers = os.dup(1)
    os.dup2(2, 1)
    library = ctypes.CDLL(library_path)
    library.ytk_gaia_workspace.restype = ctypes.c_int64
    commands = sys.stdin
    setup = json.loads(commands.readline())
    threads = int(setup["threads"])
    context = abi.Context(size=ctypes.sizeof(abi.Context), abi_version=abi.ABI_VERSION, threads=threads)
    inputs, outputs = _tensors(abi, 0, setup["inputs"]), _tensors(abi, 0, setup["outputs"])
    nin, nout = len(setup["inputs"]), len(setup["outputs"])
    for tensor in (*inputs, *outputs):
        tensor.data = None
    _answer(answers, f"loaded {library.ytk_gaia_workspace(ctypes.byref(context), inputs, nin, outputs, nout)}")

    layout = json.loads(commands.readline())
    base = _libc.mmap(None, layout["size"], _PROT_READ | _PROT_WRITE, _MAP_SHARED, arena, 0)
    if base in {None, ctypes.c_void_p(-1).value}:
        raise OSError(ctypes.get_errno(), "mmap")
    for start, length in layout["guards"]:
        _protect(base + start, length, _PROT_NONE)
    for start, length in layout["read_only"]:
        _protect(base + start, length, _PROT_READ)
    inputs, outputs = _tensors(abi, base, layout["inputs"]), _tensors(abi, base, layout["outputs"])
    if layout["workspace"] is not None:
        context.workspace = base + layout["workspace"]["offset"]
        context.workspace_bytes = layout["workspace"]["size"]
    snapshots = [(base + to, base + source, size) for source, to, size in layout["snapshots"]]
    library.ytk_gaia_watch(ctypes.c_void_p(base), ctypes.c_uint64(layout["size"]), ctypes.c_int(2))
    _answer(answers, "mapped")

    entry, pointer = library.ytk_gaia_entry, ctypes.byref(context)
    elapsed = None
    if hasattr(library, "ytk_gaia_elapsed"):
        # A GPU's own clock: round the kernels alone, without the copies to and fro.
        elapsed = library.ytk_gaia_elapsed
        elapsed.restype = ctypes.c_int64
    clock, copy = time.perf_counter_ns, ctypes.memmove
    gc.disable()
    walked, turn = bytearray(), 0
    for line in commands:
        word, nonce, *more = line.split()
        if word == "skip":
            time.sleep(_SKIP_S)
            for to, source, size in snapshots:
                copy(to, source, size)
            _answer(answers, f"done {nonce} 0 0")
            continue
        if word == "try":
            index, axis, extent = map(int, more)
            kept, inputs[index].dims[axis] = inputs[index].dims[axis], extent
            status = entry(pointer, inputs, nin, outputs, nout)
            inputs[index].dims[axis] = kept
            _answer(answers, f"done {nonce} {status} 0")
            continue
        if word == "cold":
            walked = walked or bytearray(int(setup["flush_bytes"]))
            turn += 1
            ctypes.memset((ctypes.c_char * len(walked)).from_buffer(walked), turn & 0xFF, len(walked))
        started = clock()
        status = entry(pointer, inputs, nin, outputs, nout)
        ended = clock()
        for to, source, size in snapshots:
            copy(to, source, size)
        took = ended - started if elapsed is None else elapsed(int(word == "cold"))
        _answer(answers, f"done {nonce} {status} {took}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
