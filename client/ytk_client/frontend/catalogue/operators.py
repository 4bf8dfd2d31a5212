"""Registers the operators of ``torch.ops.ytk_catalogue``: schema, reference implementation, shape function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ytk_client.frontend.catalogue import sparse
from ytk_core.catalogue import NAMESPACE

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_WINDOW = "int[] spatial_shape, int batch_size, int[] kernel_size, int[] stride, int[] padding, int[] dilation"


def _define(name: str, signature: str, reference: Callable[..., Any], shape: Callable[..., Any]) -> None:
    _LIBRARY.define(f"{name}{signature}")
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shape, lib=_LIBRARY)


def _subm_shape(features: torch.Tensor, _i: Any, weight: torch.Tensor, *_rest: Any) -> torch.Tensor:
    return features.new_empty(features.shape[0], weight.shape[2])


def _conv_shape(
    features: torch.Tensor, indices: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:
    rows = rest[-1]
    return (
        features.new_empty(rows, weight.shape[2]),
        indices.new_empty(rows, 4),
        indices.new_empty(1),
    )


def _inverse_shape(
    features: torch.Tensor, _i: Any, fine_indices: torch.Tensor, weight: torch.Tensor, *_rest: Any
) -> torch.Tensor:
    return features.new_empty(fine_indices.shape[0], weight.shape[2])


def _dense_shape(features: torch.Tensor, _i: Any, spatial_shape: Sequence[int], batch_size: int) -> torch.Tensor:
    return features.new_empty(batch_size, features.shape[1], *spatial_shape)


_define(
    "sparse_subm_conv3d",
    "(Tensor features, Tensor indices, Tensor weight, Tensor bias, int[] spatial_shape, int batch_size, int[] kernel_size, int[] dilation) -> Tensor",
    sparse.subm_conv3d,
    _subm_shape,
)
_define(
    "sparse_conv3d",
    f"(Tensor features, Tensor indices, Tensor weight, Tensor bias, {_WINDOW}, int max_voxels) -> (Tensor, Tensor, Tensor)",
    sparse.conv3d,
    _conv_shape,
)
_define(
    "sparse_inverse_conv3d",
    f"(Tensor features, Tensor indices, Tensor fine_indices, Tensor weight, Tensor bias, {_WINDOW}) -> Tensor",
    sparse.inverse_conv3d,
    _inverse_shape,
)
_define(
    "sparse_to_dense",
    "(Tensor features, Tensor indices, int[] spatial_shape, int batch_size) -> Tensor",
    sparse.to_dense,
    _dense_shape,
)
