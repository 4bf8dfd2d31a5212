"""torch tensors as the arrays of our files, and shapes and dtypes in our words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ytk_core.dtypes import DType
from ytk_core.errors import UserError


def dtype_of(tensor: torch.Tensor) -> DType:
    """Give our word for a tensor's dtype.

    Raises:
        UserError: ``bad_dtype``: engines and kernels have no such type.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return DType(name)
    except ValueError as err:
        hint = f"Cast it in the model; known are {', '.join(DType)}."
        raise UserError(f"a tensor of dtype {name} cannot be an input or output", code="bad_dtype", hint=hint) from err


def to_storage(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Give the array as our files store it (bfloat16 as its bits, uint16), of the same shape."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.dtype is torch.bfloat16:
        plain = plain.view(torch.uint16)
    array: np.ndarray[Any, Any] = plain.numpy()
    return array


def to_onnx(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Give the array as ONNX evaluators take it (bfloat16 as ml_dtypes' type), of the same shape."""
    array = to_storage(tensor)
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array


def from_onnx(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give an evaluator's result in storage form."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
