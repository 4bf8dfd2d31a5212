"""Models written with ``spconv.pytorch``, as operators that can be captured.

spconv's layers read memory behind torch's back, so torch.export cannot follow them. Two of its methods are replaced
while a model is captured: the one that every convolution ends in, and the one that makes a sparse tensor dense. Batch
norms, activations and whatever else works on ``.features`` is ordinary torch and stays.

A sparse tensor has a fixed number of rows in an engine: the rows of the example input, and after a strided convolution
``max_voxels`` of the layer (an attribute that the user sets on the module; as many rows as enter if it is not set).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from ytk_client.frontend.catalogue import operators as _registered  # noqa: F401 - the operators called here
from ytk_client.frontend.catalogue.sparse import strided_shape
from ytk_core.errors import UserError

_ops = torch.ops.ytk_catalogue
MAX_VOXELS = "max_voxels"
_UNSUPPORTED_HINT = (
    "Shipped are SubMConv, SparseConv and SparseInverseConv in 1 to 3 dimensions, ToDense, and layers on .features. "
    "Write the layer with those, or keep it out of the prepared model."
)


@contextlib.contextmanager
def adapted(model: torch.nn.Module) -> Iterator[None]:
    """Replace spconv's methods if the model has a module of spconv."""
    if not any(_is_spconv(module) for module in model.modules()):
        yield
        return
    core, conv = sys.modules["spconv.pytorch.core"], sys.modules["spconv.pytorch.conv"]
    original = conv.SparseConvolutionBase._conv_forward  # noqa: SLF001 - the one place all of spconv's convolutions share
    names = {id(module): name for name, module in model.named_modules()}

    def convolve(layer: Any, training: bool, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(layer), type(layer).__name__)
        if layer.conv1x1 and not layer.transposed:
            return original(layer, training, tensor, *args, **kwargs)  # a matrix product, ordinary torch
        return _convolve(layer, name, tensor, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for target, attribute, value in (
            (conv.SparseConvolutionBase, "_conv_forward", convolve),
            (core.SparseConvTensor, "dense", _dense),
            *((kind, "forward", _refuse) for kind in _pools()),
        ):
            stack.enter_context(mock.patch.object(target, attribute, value))
        yield


def _is_spconv(module: torch.nn.Module) -> bool:
    return any(kind.__module__.startswith("spconv.pytorch") for kind in type(module).__mro__)


def _pools() -> list[type]:
    module = sys.modules.get("spconv.pytorch.pool")
    kinds = [] if module is None else vars(module).values()
    return [kind for kind in kinds if isinstance(kind, type) and kind.__module__ == "spconv.pytorch.pool"]


def _refuse(layer: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise _unsupported(type(layer).__name__, "is a sparse pooling layer")


def _unsupported(name: str, why: str) -> UserError:
    return UserError(
        f"no shipped plugin for the spconv layer {name}: it {why}", code="spconv_unsupported", hint=_UNSUPPORTED_HINT
    )


@dataclass(frozen=True)
class _Pairs:
    """What a strided convolution leaves for its inverse, under its ``indice_key``."""

    indices: torch.Tensor
    spatial_shape: list[int]
    kernel_size: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]


def _convolve(
    layer: Any,
    label: str,
    tensor: Any,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    add_input: Any = None,
    *_quantisation: Any,
    act_type: Any = None,
    **_options: Any,
) -> Any:
    """Stand for ``SparseConvolutionBase._conv_forward``."""
    _check(layer, label, tensor)
    kernel = _matrices(weight, layer, label)
    offset = torch.zeros(layer.out_channels, dtype=weight.dtype) if bias is None else bias
    places, features = _lifted(tensor.indices), tensor.features
    result = tensor.shadow_copy()
    result.indice_dict = dict(tensor.indice_dict)
    if layer.subm:
        sizes, dilation = _three(layer.kernel_size, 1), _three(layer.dilation, 1)
        grid = _three(tensor.spatial_shape, 1)
        values = _ops.sparse_subm_conv3d(features, places, kernel, offset, grid, tensor.batch_size, sizes, dilation)
    elif layer.inverse:
        pairs = tensor.find_indice_pair(layer.indice_key)
        if not isinstance(pairs, _Pairs):
            raise _unsupported(label, f"inverts {layer.indice_key!r}, which no strided convolution before it has")
        window = [pairs.kernel_size, pairs.stride, pairs.padding, pairs.dilation]
        fine, grid = pairs.indices, _three(pairs.spatial_shape, 1)
        values = _ops.sparse_inverse_conv3d(
            features, places, _lifted(fine), kernel, offset, grid, tensor.batch_size, *window
        )
        result.indices, result.spatial_shape = fine, list(pairs.spatial_shape)
    else:
        window = [
            _three(layer.kernel_size, 1),
            _three(layer.stride, 1),
            _three(layer.padding, 0),
            _three(layer.dilation, 1),
        ]
        grid = _three(tensor.spatial_shape, 1)
        out_grid = strided_shape(grid, *window)
        capacity = _capacity(layer, label, features.shape[0], tensor.batch_size, out_grid)
        values, found, _active = _ops.sparse_conv3d(
            features, places, kernel, offset, grid, tensor.batch_size, *window, capacity
        )
        if layer.indice_key is not None:
            result.indice_dict[layer.indice_key] = _Pairs(tensor.indices, list(tensor.spatial_shape), *window)
        result.indices, result.spatial_shape = _lowered(found, layer.ndim), out_grid[3 - layer.ndim :]
    return result.replace_feature(_activated(layer, values, add_input, act_type))


def _check(layer: Any, name: str, tensor: Any) -> None:
    if layer.ndim > 3:
        raise _unsupported(name, f"has {layer.ndim} dimensions")
    if layer.transposed:
        raise _unsupported(name, "is a transposed convolution that makes new places")
    if tensor.is_quantized:
        raise _unsupported(name, "is quantised")


def _activated(layer: Any, values: torch.Tensor, add_input: Any, act_type: Any) -> torch.Tensor:
    conv = sys.modules["spconv.pytorch.conv"]
    if add_input is not None:
        values = values + add_input.features
    kind = layer.act_type if act_type is None else act_type
    activated: torch.Tensor = conv._apply_act(values, kind, layer.act_alpha, layer.act_beta)  # noqa: SLF001 - spconv's own table of activations
    return activated


def _capacity(layer: Any, name: str, rows: int, batch_size: int, grid: Sequence[int]) -> int:
    declared = getattr(layer, MAX_VOXELS, rows)
    if not isinstance(declared, int) or isinstance(declared, bool) or declared < 1:
        msg = (
            f"the spconv layer {name} has {MAX_VOXELS} = {declared!r}; a dynamic number of voxels needs a fixed maximum"
        )
        hint = f"Set `{MAX_VOXELS}` on that module to the most active voxels that it may give, an integer."
        raise UserError(msg, code="bad_max_voxels", hint=hint)
    return min(declared, batch_size * grid[0] * grid[1] * grid[2])


def _three(values: Sequence[int], missing: int) -> list[int]:
    """Give values for z, y, x; a convolution of fewer dimensions is one with z (and y) of extent 1."""
    return [missing] * (3 - len(values)) + [int(each) for each in values]


def _lifted(indices: torch.Tensor) -> torch.Tensor:
    missing = 4 - indices.shape[1]
    if missing == 0:
        return indices
    return torch.cat([indices[:, :1], indices.new_zeros(indices.shape[0], missing), indices[:, 1:]], dim=1)


def _lowered(indices: torch.Tensor, ndim: int) -> torch.Tensor:
    return indices if ndim == 3 else torch.cat([indices[:, :1], indices[:, 4 - ndim :]], dim=1)


def _matrices(weight: torch.Tensor, layer: Any, name: str) -> torch.Tensor:
    """Give a weight as [kernel elements, channels in, channels out], whatever order spconv was built with."""
    sizes, inner, outer = list(layer.kernel_size), layer.in_channels, layer.out_channels
    elements = list(range(1, layer.ndim + 1))
    shape = list(weight.shape)
    if shape == [outer, *sizes, inner] == list(layer.weight_shape):
        moved = weight.permute(*elements, layer.ndim + 1, 0)
    elif shape == [*sizes, outer, inner]:
        moved = weight.transpose(-1, -2)
    else:
        raise _unsupported(name, f"has a weight of shape {shape}")
    return moved.reshape(-1, inner, outer).contiguous()


def _dense(tensor: Any, channels_first: bool = True) -> torch.Tensor:
    """Stand for ``SparseConvTensor.dense``."""
    shape = list(tensor.spatial_shape)
    dense = _ops.sparse_to_dense(tensor.features, _lifted(tensor.indices), _three(shape, 1), tensor.batch_size)
    dense = dense.reshape(tensor.batch_size, tensor.features.shape[1], *shape)
    return dense if channels_first else dense.movedim(1, -1)
