"""Call a CPU kernel through the kernel ABI (``ytk_kernel.h``, ABI 1), from numpy arrays. Only in a child process: its code runs here."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ytk_core.dtypes import ONNX_NUMBER, DType, storage_dtype
from ytk_core.errors import CandidateError

ABI_VERSION = 1
MAX_RANK = 8
ALIGNMENT = 64
_GUARD_BYTES = 4096
_GUARD = 0xA5
_STATUS = {
    1: "YTK_BAD_ARITY",
    2: "YTK_BAD_DTYPE",
    3: "YTK_BAD_SHAPE",
    4: "YTK_BAD_ATTRIBUTE",
    5: "YTK_BAD_VARIANT",
    6: "YTK_WORKSPACE_TOO_SMALL",
    7: "YTK_DEVICE_ERROR",
    8: "YTK_UNSUPPORTED",
    9: "YTK_BAD_ALIGNMENT",
}
Array = np.ndarray[Any, Any]


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("format", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("reserved2", ctypes.c_int32),
    )


class _Attr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("floats", ctypes.POINTER(ctypes.c_double)),
        ("string", ctypes.c_char_p),
    )


class _Context(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("attrs", ctypes.POINTER(_Attr)),
        ("attr_count", ctypes.c_int32),
        ("variant", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


_ARGUMENTS = (ctypes.POINTER(_Context), ctypes.POINTER(_Tensor), ctypes.c_int, ctypes.POINTER(_Tensor), ctypes.c_int)
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, *_ARGUMENTS)
_Workspace = ctypes.CFUNCTYPE(ctypes.c_int64, *_ARGUMENTS)


class _Table(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("name_space", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("nin", ctypes.c_int32),
        ("nout", ctypes.c_int32),
        ("variant_count", ctypes.c_int32),
        ("attr_count", ctypes.c_int32),
        ("variants", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("launch", _Launch),
        ("shape", _Launch),
        ("workspace", _Workspace),
        ("meta_digest", ctypes.c_char_p),
    )


class Functions:
    """The functions of a loaded kernel. ``shape`` and ``workspace`` are None where it has none."""

    def __init__(self, launch: Any, shape: Any, workspace: Any, keep: Any) -> None:
        self.launch = launch
        self.shape = shape
        self.workspace = workspace
        self._keep = keep


def load_plugin(library: Path) -> Functions:
    """Load a built plugin through its ``ytk_plugin()``.

    Raises:
        CandidateError: It cannot be loaded, or speaks another ABI.
    """
    handle = _load(library)
    try:
        entry = handle.ytk_plugin
    except AttributeError as err:
        raise _bad(f"{library.name} has no ytk_plugin(): it is no CPU plugin") from err
    entry.argtypes, entry.restype = (), ctypes.POINTER(_Table)
    pointer = entry()
    if not pointer or pointer.contents.abi_version != ABI_VERSION or pointer.contents.size < ctypes.sizeof(_Table):
        raise _bad(f"{library.name} speaks another ABI than {ABI_VERSION}")
    table = pointer.contents
    return Functions(table.launch, table.shape or None, table.workspace or None, handle)


def load_symbols(library: Path, launch: str, workspace: str | None) -> Functions:
    """Load a library that exports its launcher by name.

    Raises:
        CandidateError: It cannot be loaded, or lacks a symbol.
    """
    handle = _load(library)
    try:
        return Functions(
            _Launch((launch, handle)), None, _Workspace((workspace, handle)) if workspace else None, handle
        )
    except AttributeError as err:
        raise _bad(str(err)) from err


def _load(library: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library))
    except OSError as err:
        raise _bad(f"the library cannot be loaded: {err}") from err


def _bad(message: str) -> CandidateError:
    return CandidateError(message, code="kernel_failed", hint="Build or generate the kernel again.")


def _guarded(shape: Sequence[int], dtype: Any) -> tuple[Array, Array]:
    """Give an aligned array and the raw bytes around it, marked."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.full(size + 2 * _GUARD_BYTES + ALIGNMENT, _GUARD, np.uint8)
    start = _GUARD_BYTES + (-(raw.ctypes.data + _GUARD_BYTES) % ALIGNMENT)
    return raw[start : start + size].view(dtype).reshape(shape), raw


def _touched(array: Array, raw: Array) -> bool:
    start = array.ctypes.data - raw.ctypes.data
    return bool((raw[:start] != _GUARD).any() or (raw[start + array.nbytes :] != _GUARD).any())


def _tensor(array: Array, dtype: DType) -> _Tensor:
    view = _Tensor(data=array.ctypes.data or None, dtype=ONNX_NUMBER[dtype], rank=array.ndim, scale=1.0)
    view.dims[: array.ndim] = array.shape
    return view


def _attributes(values: Mapping[str, Any]) -> Any:
    array = (_Attr * max(1, len(values)))()
    for slot, (name, value) in zip(array, values.items(), strict=False):
        slot.name = name.encode()
        if isinstance(value, str):
            slot.type, slot.count, slot.string = 3, len(value.encode()), value.encode()
        elif any(isinstance(item, float) for item in value):
            slot.type, slot.count, slot.floats = 2, len(value), (ctypes.c_double * len(value))(*value)
        else:
            slot.type, slot.count, slot.ints = 1, len(value), (ctypes.c_int64 * len(value))(*value)
    return array


def call(
    functions: Functions,
    inputs: Sequence[tuple[Array, DType]],
    outputs: Sequence[tuple[tuple[int, ...], DType]],
    *,
    variant: int,
    attributes: Mapping[str, Any],
) -> list[Array]:
    """Call a kernel once, on copies of the inputs, with guards around every buffer.

    Args:
        functions: The kernel.
        inputs: Arrays in storage form, with their dtypes.
        outputs: Shape and dtype of each output.
        variant: Index of the variant that has these dtypes.
        attributes: Fixed attributes of the contract.

    Returns:
        The outputs in storage form.

    Raises:
        CandidateError: It failed, wrote outside of its outputs, changed an input, or its shape function disagrees.
    """
    guarded_in = []
    for array, _ in inputs:
        copy, raw = _guarded(array.shape, array.dtype)
        copy[...] = array
        guarded_in.append((copy, raw))
    # Not zeros: an output that is never written must not look right.
    guarded_out = [_guarded(shape, storage_dtype(dtype)) for shape, dtype in outputs]
    ins = (_Tensor * max(1, len(inputs)))(
        *(_tensor(copy, dtype) for (copy, _), (_, dtype) in zip(guarded_in, inputs, strict=True))
    )
    outs = (_Tensor * max(1, len(outputs)))(
        *(_tensor(array, dtype) for (array, _), (_, dtype) in zip(guarded_out, outputs, strict=True))
    )
    attrs = _attributes(attributes)
    context = _Context(size=ctypes.sizeof(_Context), abi_version=ABI_VERSION, variant=variant, threads=1)
    context.attrs, context.attr_count = attrs, len(attributes)
    reference = ctypes.byref(context)
    if functions.shape is not None:
        _check_shapes(functions, reference, ins, len(inputs), outputs)
    workspace = None
    if functions.workspace is not None:
        size = int(functions.workspace(reference, ins, len(inputs), outs, len(outputs)))
        if size < 0:
            raise _bad(f"the workspace function refuses these tensors ({size})")
        workspace = _guarded((size,), np.uint8)
        context.workspace, context.workspace_bytes = workspace[0].ctypes.data, size
    status = int(functions.launch(reference, ins, len(inputs), outs, len(outputs)))
    if status:
        raise _bad(f"launch gave {status} ({_STATUS.get(status, 'no status of the ABI')})")
    if any(_touched(*pair) for pair in (*guarded_in, *guarded_out, *([workspace] if workspace else []))):
        raise _bad("the kernel wrote outside of its buffers")
    for index, ((copy, _), (array, _)) in enumerate(zip(guarded_in, inputs, strict=True)):
        if copy.tobytes() != array.tobytes():
            raise _bad(f"the kernel changed its input {index}")
    return [array.copy() for array, _ in guarded_out]


def _check_shapes(
    functions: Functions, reference: Any, ins: Any, count: int, outputs: Sequence[tuple[tuple[int, ...], DType]]
) -> None:
    found = (_Tensor * max(1, len(outputs)))()
    status = int(functions.shape(reference, ins, count, found, len(outputs)))
    if status:
        raise _bad(f"the shape function gave {status} ({_STATUS.get(status, 'no status of the ABI')})")
    for index, (shape, _) in enumerate(outputs):
        given = tuple(found[index].dims[: max(0, min(found[index].rank, MAX_RANK))])
        if given != shape:
            raise _bad(f"the shape function gives {given} for output {index}; torch gave {shape}")
