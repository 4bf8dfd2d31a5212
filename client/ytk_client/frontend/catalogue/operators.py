"""Registers the operators of ``torch.ops.ytk_catalogue``: schema, reference implementation, shape function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ytk_client.frontend.catalogue import boxes, dense, sparse
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


def _pillar_shape(features: torch.Tensor, _c: Any, grid_size: Sequence[int], batch_size: int) -> torch.Tensor:
    return features.new_empty(batch_size, features.shape[1], *grid_size)


def _deform_shape(image: torch.Tensor, offset: torch.Tensor, weight: torch.Tensor, *_rest: Any) -> torch.Tensor:
    return image.new_empty(image.shape[0], weight.shape[0], *offset.shape[2:])


def _attention_shape(value: torch.Tensor, _s: Any, locations: torch.Tensor, _w: Any) -> torch.Tensor:
    return value.new_empty(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])


def _roi_shape(features: torch.Tensor, rois: torch.Tensor, output_size: Sequence[int], *_rest: Any) -> torch.Tensor:
    return features.new_empty(rois.shape[0], features.shape[1], *output_size)


def _nms_shape(boxes: torch.Tensor, _s: Any, max_output: int, *_rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return boxes.new_empty(max_output, dtype=torch.int32), boxes.new_empty(1, dtype=torch.int32)


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
_define(
    "pillar_scatter",
    "(Tensor features, Tensor coordinates, int[] grid_size, int batch_size) -> Tensor",
    sparse.pillar_scatter,
    _pillar_shape,
)
_define(
    "deform_conv2d",
    "(Tensor image, Tensor offset, Tensor weight, Tensor bias, Tensor mask, int[] stride, int[] padding, int[] dilation, int groups, int offset_groups, int use_mask) -> Tensor",
    dense.deform_conv2d,
    _deform_shape,
)
_define(
    "multi_scale_deform_attn",
    "(Tensor value, Tensor spatial_shapes, Tensor sampling_locations, Tensor attention_weights) -> Tensor",
    dense.multi_scale_deform_attn,
    _attention_shape,
)
_define(
    "roi_align",
    "(Tensor features, Tensor rois, int[] output_size, int sampling_ratio, int aligned, float spatial_scale) -> Tensor",
    dense.roi_align,
    _roi_shape,
)
_define(
    "rotated_nms",
    "(Tensor boxes, Tensor scores, int max_output, float iou_threshold, float score_threshold) -> (Tensor, Tensor)",
    boxes.rotated_nms,
    _nms_shape,
)
