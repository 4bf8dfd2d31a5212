"""Call a built plugin library the way an engine's host does, from numpy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ytk_core.abi import ctypes_abi as abi
from ytk_core.dtypes import ONNX_NUMBER, DType

Array = np.ndarray[Any, Any]
ALIGNMENT = 64


def aligned(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
    """An uninitialised array that begins ``offset`` bytes after a 64-byte boundary."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 2 * ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + offset
    return raw[start : start + size].view(dtype).reshape(shape)


def tensor(array: Array) -> abi.Tensor:
    """A linear ytk_tensor over an array, which the caller keeps alive."""
    number = ONNX_NUMBER[DType(str(array.dtype))]
    view = abi.Tensor(data=array.ctypes.data or None, dtype=number, rank=array.ndim, scale=1.0)
    view.dims[: array.ndim] = array.shape
    return view


def context(variant: int = 0, attrs: Any = None, threads: int = 1, workspace: Array | None = None) -> abi.Context:
    """A context that a host of ABI 1 fills in."""
    ctx = abi.Context(size=ctypes.sizeof(abi.Context), abi_version=1, variant=variant, threads=threads)
    if attrs is not None:
        ctx.attrs, ctx.attr_count = attrs, len(attrs)
    if workspace is not None:
        ctx.workspace, ctx.workspace_bytes = workspace.ctypes.data, workspace.nbytes
    return ctx


def launch(table: abi.Table, ctx: abi.Context | None, inputs: list[Array], outputs: list[Array]) -> int:
    """Call launch; the outputs are written in place. Gives the status."""
    ins = (abi.Tensor * max(1, len(inputs)))(*map(tensor, inputs))
    outs = (abi.Tensor * max(1, len(outputs)))(*map(tensor, outputs))
    reference = None if ctx is None else ctypes.byref(ctx)
    return int(table.launch(reference, ins, len(inputs), outs, len(outputs)))


def workspace_bytes(table: abi.Table, ctx: abi.Context, inputs: list[Array], outputs: list[Array]) -> int:
    """Call the workspace function."""
    ins, outs = (abi.Tensor * len(inputs))(*map(tensor, inputs)), (abi.Tensor * len(outputs))(*map(tensor, outputs))
    return int(table.workspace(ctypes.byref(ctx), ins, len(inputs), outs, len(outputs)))


def as_aligned(values: Any, dtype: Any) -> Array:
    """A 64-byte aligned copy."""
    source = np.asarray(values, dtype)
    array = aligned(source.shape, dtype)
    array[...] = source
    return array
