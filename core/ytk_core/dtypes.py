"""Element types in the words of every party: numpy, ONNX, torch (by name only), the kernel ABI."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np


class DType(enum.StrEnum):
    """An element type; the value is the name used in every file of ours."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"


# The kernel ABI uses ONNX's numbers (onnx.TensorProto.DataType).
ONNX_NUMBER: dict[DType, int] = {
    DType.FLOAT32: 1,
    DType.UINT8: 2,
    DType.INT8: 3,
    DType.INT32: 6,
    DType.INT64: 7,
    DType.BOOL: 9,
    DType.FLOAT16: 10,
    DType.FLOAT64: 11,
    DType.BFLOAT16: 16,
}
FROM_ONNX_NUMBER: dict[int, DType] = {number: dtype for dtype, number in ONNX_NUMBER.items()}

C_TYPE: dict[DType, str] = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT8: "int8_t",
    DType.UINT8: "uint8_t",
    DType.INT32: "int32_t",
    DType.INT64: "int64_t",
    DType.BOOL: "bool",
    # No C type before C23; kernels name their own half types.
    DType.FLOAT16: "ytk_half",
    DType.BFLOAT16: "ytk_bfloat16",
}


def storage_dtype(dtype: DType) -> np.dtype[Any]:
    """Give the numpy dtype that holds the bits; bfloat16 has none and is stored as uint16."""
    return np.dtype(np.uint16) if dtype is DType.BFLOAT16 else np.dtype(str(dtype))


def itemsize(dtype: DType) -> int:
    """Give the size of one element in bytes."""
    return storage_dtype(dtype).itemsize


def bfloat16_to_float32(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Widen bfloat16 bits (uint16, any shape) to float32 of the same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round float32 (any shape) to bfloat16 bits as uint16, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
