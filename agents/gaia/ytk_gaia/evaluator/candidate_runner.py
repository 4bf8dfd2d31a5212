"""The candidate's process: ``candidate_runner.py ABI_DIR LIBRARY ARENA_FD FILTERS``. Standard library only; run as a bare script.

``ABI_DIR`` has ``ctypes_abi.py`` (:data:`ytk_core.abi.CTYPES_DIR`), which is standard library only too. ``FILTERS`` are those of
:mod:`.system_calls`: one holds from before the library is loaded, one from before its first call.

It knows no expected value and gives no verdict. It calls the kernel when told to, copies the outputs aside at once, and
says how long the call took; the judge decides from the memory it shares. Nothing in this process can be trusted once the
library is loaded, this file's answers included.

Protocol, one line each: the judge writes a setup and a mapping (JSON) once, and ``go <nonce>`` per call; answers are ``loaded <workspace
bytes>``, ``mapped``, and ``done <nonce> <status> <nanoseconds> <checksum of the outputs> <floating-point mode>``. ``cold <nonce>`` is a
call after a walk through more memory than caches hold; ``skip <nonce>`` is no call at all: it waits a moment and answers, so that the
judge sees what appears without one; ``many <nonce> <n>`` is n calls with one reading of the clock round all; ``try <nonce> <json>`` is a
call with other arguments than the contract allows (:class:`ytk_gaia.evaluator.session.Change`).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

_SKIP_S = 0.010  # a thread that does the work by itself would have had as long between two real calls
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED = 1
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2
NOT_TRIED = -(1 << 30)
"""Status of a changed call that would need more workspace than there is."""
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


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("count", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def _install(text: str) -> None:
    """Put a filter on this process; a kernel without seccomp goes without."""
    steps = bytes.fromhex(text)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = _Program(len(steps) // 8, ctypes.addressof(buffer))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program), 0, 0)


def _float_mode() -> Callable[[], int]:
    """Give a function that reads the control bits of the floating-point unit: rounding, masks, flushing of denormals."""
    try:
        read = ctypes.CDLL("libm.so.6").fegetenv
    except (OSError, AttributeError):
        return lambda: 0
    read.argtypes = (ctypes.c_void_p,)
    room = (ctypes.c_uint32 * 16)()
    address = ctypes.addressof(room)
    # glibc's fenv_t: on x86-64 the control word of the old unit first, MXCSR as the eighth word; on aarch64 FPCR first.
    intel = os.uname().machine == "x86_64"

    def mode() -> int:
        read(address)
        # Of MXCSR not the six sticky flags: that something was inexact is no mode.
        return (room[0] & 0xFFFF) << 16 | (room[7] & 0xFFC0) if intel else int(room[0])

    return mode


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


def _changed_call(library: Any, context: Any, inputs: Any, outputs: Any, counts: tuple[int, int], change: Any) -> int:
    """Call the kernel with copies of the arguments in which something is different; give its status."""
    own = type(context).from_buffer_copy(context)
    given = {"in": type(inputs).from_buffer_copy(inputs), "out": type(outputs).from_buffer_copy(outputs)}
    for kind, index, field, axis, value in change["fields"]:
        if field == "dims":
            given[kind][index].dims[axis] = value
        else:
            setattr(given[kind][index], field, value)
    for tensor in (*given["in"], *given["out"]):
        if tensor.data is not None:
            tensor.data += change["shift"]
    if change["threads"]:
        own.threads = change["threads"]
        need = library.ytk_gaia_workspace(ctypes.byref(own), given["in"], counts[0], given["out"], counts[1])
        if need > own.workspace_bytes:
            return NOT_TRIED
    if change["workspace_less"]:
        own.workspace_bytes -= change["workspace_less"]
    if change["variant"] is not None:
        own.variant = change["variant"]
    nin, nout = counts[0] - change["inputs_less"], counts[1] - change["outputs_less"]
    return int(library.ytk_gaia_entry(ctypes.byref(own), given["in"], nin, given["out"], nout))


def main(abi_dir: str, library_path: str, arena: int, filters: str) -> None:
    """Serve one judge until standard input ends."""
    sys.path.insert(0, abi_dir)
    import ctypes_abi as abi  # type: ignore[import-not-found]  # found only by a bare interpreter

    # Whatever the library prints goes to the log; answers go through a descriptor of their own.
    answers = os.dup(1)
    os.dup2(2, 1)
    first, _, second = filters.partition(":")
    float_mode = _float_mode()
    if second:
        _install(first)
    library = ctypes.CDLL(library_path)
    library.ytk_gaia_workspace.restype = ctypes.c_int64
    commands = sys.stdin
    setup = json.loads(commands.readline())
    threads = int(setup["threads"])
    context = abi.Context(size=ctypes.sizeof(abi.Context), abi_version=abi.ABI_VERSION, threads=threads)
    context.variant = int(setup["variant"])
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
    if second:
        _install(second)
    _answer(answers, "mapped")

    entry, pointer = library.ytk_gaia_entry, ctypes.byref(context)
    elapsed = None
    if hasattr(library, "ytk_gaia_elapsed"):
        # A GPU's own clock: round the kernels alone, without the copies to and fro.
        elapsed = library.ytk_gaia_elapsed
        elapsed.restype = ctypes.c_int64
    clock, copy, take = time.perf_counter_ns, ctypes.memmove, ctypes.string_at
    gc.disable()
    walked, turn = bytearray(), 0
    for line in commands:
        word, nonce, *rest = line.rstrip("\n").split(" ", 2)
        more = rest[0] if rest else ""
        if word == "skip":
            time.sleep(_SKIP_S)
            _answer(answers, f"done {nonce} 0 0 0 0")
            continue
        if word == "try":
            status = _changed_call(library, context, inputs, outputs, (nin, nout), json.loads(more))
            _answer(answers, f"done {nonce} {status} 0 0 {float_mode()}")
            continue
        if word == "cold":
            walked = walked or bytearray(int(setup["flush_bytes"]))
            turn += 1
            ctypes.memset((ctypes.c_char * len(walked)).from_buffer(walked), turn & 0xFF, len(walked))
        started = clock()
        status = entry(pointer, inputs, nin, outputs, nout)
        for _ in range(int(more or 1) - 1 if word == "many" else 0):
            status = status or entry(pointer, inputs, nin, outputs, nout)
        ended = clock()
        # To memory of our own first: what comes later than the launcher's return is not in there.
        kept = [take(source, size) for _, source, size in snapshots]
        check = 0
        for (to, _, size), raw in zip(snapshots, kept, strict=True):
            copy(to, raw, size)
            check = zlib.crc32(raw, check)
        took = ended - started if elapsed is None else elapsed(int(word == "cold"))
        _answer(answers, f"done {nonce} {status} {took} {check} {float_mode()}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
