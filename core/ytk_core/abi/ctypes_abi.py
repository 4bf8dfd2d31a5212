"""The kernel ABI (``ytk_kernel.h``, ABI 1) for ctypes: the only place where its structures are written in Python.

Imports nothing but the standard library. Programs that run in a bare, sandboxed interpreter (``python -I -S``) put
:data:`ytk_core.abi.CTYPES_DIR` on their path and ``import ctypes_abi``; everybody else imports it from the package.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ABI_VERSION = 1
MAX_RANK = 8


STATUS = {
    0: "YTK_OK",
    1: "YTK_BAD_ARITY",
    2: "YTK_BAD_DTYPE",
    3: "YTK_BAD_SHAPE",
    4: "YTK_BAD_ATTRIBUTE",
    5: "YTK_BAD_VARIANT",
    6: "YTK_WORKSPACE_TOO_SMALL",
    7: "YTK_DEVICE_ERROR",
    8: "YTK_UNSUPPORTED",
    9: "YTK_BAD_ALIGNMENT",
    10: "YTK_OVERFLOW",
}
"""``enum ytk_status``: what launch and shape return."""
ATTR_INTS, ATTR_FLOATS, ATTR_STRING = 1, 2, 3


class Tensor(ctypes.Structure):
    """``ytk_tensor``."""

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


class Attr(ctypes.Structure):
    """``ytk_attr``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("floats", ctypes.POINTER(ctypes.c_double)),
        ("string", ctypes.c_char_p),
    )


class Context(ctypes.Structure):
    """``ytk_context``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("attrs", ctypes.POINTER(Attr)),
        ("attr_count", ctypes.c_int32),
        ("variant", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


LaunchFn = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Context), ctypes.POINTER(Tensor), ctypes.c_int, ctypes.POINTER(Tensor), ctypes.c_int
)
ShapeFn = LaunchFn
WorkspaceFn = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(Context), ctypes.POINTER(Tensor), ctypes.c_int, ctypes.POINTER(Tensor), ctypes.c_int
)


class Variant(ctypes.Structure):
    """``ytk_variant``."""

    _fields_ = (
        ("id", ctypes.c_char_p),
        ("in_dtypes", ctypes.POINTER(ctypes.c_int32)),
        ("in_formats", ctypes.POINTER(ctypes.c_int32)),
        ("out_dtypes", ctypes.POINTER(ctypes.c_int32)),
        ("out_formats", ctypes.POINTER(ctypes.c_int32)),
    )


class AttrDecl(ctypes.Structure):
    """``ytk_attr_decl``."""

    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int32), ("required", ctypes.c_int32))


class Table(ctypes.Structure):
    """``ytk_plugin_table``."""

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
        ("variants", ctypes.POINTER(Variant)),
        ("attrs", ctypes.POINTER(AttrDecl)),
        ("launch", LaunchFn),
        ("shape", ShapeFn),
        ("workspace", WorkspaceFn),
        ("meta_digest", ctypes.c_char_p),
    )


def load_table(library: Path) -> Table:
    """Load a kernel library and give its table.

    The library's own code runs (static initialisers, ``ytk_plugin``): call this only where that is acceptable.
    The handle is never closed; the table stays valid for the life of the process.

    Raises:
        OSError: It cannot be loaded, has no ``ytk_plugin``, or speaks another ABI version; the text is the loader's.
    """
    handle = ctypes.CDLL(str(library))
    try:
        entry = handle.ytk_plugin
    except AttributeError as err:
        raise OSError(str(err)) from err
    entry.argtypes = ()
    entry.restype = ctypes.POINTER(Table)
    pointer = entry()
    if not pointer:
        msg = "ytk_plugin() returned NULL"
        raise OSError(msg)
    table: Table = pointer.contents
    if table.abi_version != ABI_VERSION or table.size < ctypes.sizeof(Table):
        msg = f"ytk_plugin() speaks ABI {table.abi_version} with a table of {table.size} bytes; this host speaks ABI {ABI_VERSION}, {ctypes.sizeof(Table)} bytes"
        raise OSError(msg)
    return table


def describe_table(table: Table) -> dict[str, Any]:
    """Give what a table says as plain values: what a host would learn from it before any call."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode("utf-8", "backslashreplace")

    nin, nout = max(0, min(table.nin, 64)), max(0, min(table.nout, 64))
    return {
        "size": table.size,
        "abi_version": table.abi_version,
        "namespace": text(table.name_space),
        "name": text(table.name),
        "version": text(table.version),
        "inputs": table.nin,
        "outputs": table.nout,
        "variants": [
            {
                "id": text(variant.id),
                "inputs": [[variant.in_dtypes[i], variant.in_formats[i]] for i in range(nin)],
                "outputs": [[variant.out_dtypes[i], variant.out_formats[i]] for i in range(nout)],
            }
            for variant in (table.variants[i] for i in range(max(0, min(table.variant_count, 64))))
        ],
        "attributes": [
            [text(decl.name), decl.type, decl.required]
            for decl in (table.attrs[i] for i in range(max(0, min(table.attr_count, 64))))
        ],
        "launch": bool(table.launch),
        "shape": bool(table.shape),
        "workspace": bool(table.workspace),
        "meta_digest": text(table.meta_digest),
    }


def call_shape(
    table: Table, variant: int, inputs: list[list[int]], attrs: ctypes.Array[Attr] | None = None
) -> tuple[int, list[list[int]]]:
    """Call the shape function with linear inputs of the given dims (-1: unknown) in one variant.

    Returns:
        The status (``enum ytk_status``) and, where it is 0, the dims of every output.
    """
    ctx = Context(size=ctypes.sizeof(Context), abi_version=ABI_VERSION, variant=variant, threads=1)
    if attrs is not None:
        ctx.attrs, ctx.attr_count = attrs, len(attrs)
    types = table.variants[variant]
    tensors = (Tensor * max(1, len(inputs)))()
    for i, dims in enumerate(inputs):
        tensors[i].dtype, tensors[i].format = types.in_dtypes[i], types.in_formats[i]
        tensors[i].rank, tensors[i].scale = len(dims), 1.0
        tensors[i].dims[: len(dims)] = dims
    outputs = (Tensor * max(1, table.nout))()
    status = int(table.shape(ctypes.byref(ctx), tensors, len(inputs), outputs, table.nout))
    if status:
        return status, []
    return 0, [list(outputs[i].dims[: outputs[i].rank]) for i in range(table.nout)]


def make_attrs(values: Mapping[str, Any]) -> ctypes.Array[Attr]:
    """Build the attribute array of a context from lists of integers or floats, or strings; it keeps its contents alive."""
    array = (Attr * len(values))()
    for slot, (name, value) in zip(array, values.items(), strict=True):
        slot.name = name.encode()
        if isinstance(value, str):
            slot.type, slot.count, slot.string = ATTR_STRING, len(value.encode()), value.encode()
        elif any(isinstance(item, float) for item in value):
            slot.type, slot.count, slot.floats = ATTR_FLOATS, len(value), (ctypes.c_double * len(value))(*value)
        else:
            numbers = (ctypes.c_int64 * len(value))(*(int(item) for item in value))
            slot.type, slot.count, slot.ints = ATTR_INTS, len(value), numbers
    return array
