"""Call a CPU kernel through the kernel ABI (``ytk_kernel.h``, ABI 1), from numpy arrays. Only in a child process: its code runs here."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ytk_core.abi.ctypes_abi import (
    ABI_VERSION,
    MAX_RANK,
    STATUS,
    Context,
    LaunchFn,
    Tensor,
    WorkspaceFn,
    load_table,
    make_attrs,
)
from ytk_core.dtypes import ONNX_NUMBER, DType, storage_dtype
from ytk_core.errors import CandidateError

ALIGNMENT = 64
_GUARD_BYTES = 4096
_GUARD = 0xA5
Array = np.ndarray[Any, Any]


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
    try:
        table = load_table(library)
    except OSError as err:
        raise _bad(f"{library.name} is no CPU plugin that can be loaded here: {err}") from err
    return Functions(table.launch, table.shape or None, table.workspace or None, table)


def load_symbols(library: Path, launch: str, workspace: str | None) -> Functions:
    """Load a library that exports its launcher by name.

    Raises:
        CandidateError: It cannot be loaded, or lacks a symbol.
    """
    try:
        handle = ctypes.CDLL(str(library))
        entries = LaunchFn((launch, handle)), WorkspaceFn((workspace, handle)) if workspace else None
    except OSError as err:
        raise _bad(f"the library cannot be loaded: {err}") from err
    except AttributeError as err:
        raise _bad(str(err)) from err
    return Functions(entries[0], None, entries[1], handle)


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


def _tensor(array: Array, dtype: DType) -> Tensor:
    view = Tensor(data=array.ctypes.data or None, dtype=ONNX_NUMBER[dtype], rank=array.ndim, scale=1.0)
    view.dims[: array.ndim] = array.shape
    return view


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
    ins = (Tensor * max(1, len(inputs)))(
        *(_tensor(copy, dtype) for (copy, _), (_, dtype) in zip(guarded_in, inputs, strict=True))
    )
    outs = (Tensor * max(1, len(outputs)))(
        *(_tensor(array, dtype) for (array, _), (_, dtype) in zip(guarded_out, outputs, strict=True))
    )
    attrs = make_attrs(attributes)
    context = Context(size=ctypes.sizeof(Context), abi_version=ABI_VERSION, variant=variant, threads=1)
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
        raise _bad(f"launch gave {status} ({STATUS.get(status, 'no status of the ABI')})")
    if any(_touched(*pair) for pair in (*guarded_in, *guarded_out, *([workspace] if workspace else []))):
        raise _bad("the kernel wrote outside of its buffers")
    for index, ((copy, _), (array, _)) in enumerate(zip(guarded_in, inputs, strict=True)):
        if copy.tobytes() != array.tobytes():
            raise _bad(f"the kernel changed its input {index}")
    return [array.copy() for array, _ in guarded_out]


def _check_shapes(
    functions: Functions, reference: Any, ins: Any, count: int, outputs: Sequence[tuple[tuple[int, ...], DType]]
) -> None:
    found = (Tensor * max(1, len(outputs)))()
    status = int(functions.shape(reference, ins, count, found, len(outputs)))
    if status:
        raise _bad(f"the shape function gave {status} ({STATUS.get(status, 'no status of the ABI')})")
    for index, (shape, _) in enumerate(outputs):
        given = tuple(found[index].dims[: max(0, min(found[index].rank, MAX_RANK))])
        if given != shape:
            raise _bad(f"the shape function gives {given} for output {index}; torch gave {shape}")
