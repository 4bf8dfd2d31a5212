"""Functions and modules of public projects that an entry of the catalogue computes, known by name.

They are plain Python, or call into compiled code that torch.export cannot follow; as written, they become many operators,
shapes that depend on data, or nothing at all. What the model computes with its own code is compared with what the graph
computes, so a thing of the same name that computes something else is found, not built.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

_ops = torch.ops.ytk_catalogue


def _attention(
    value: torch.Tensor, value_spatial_shapes: Any, sampling_locations: torch.Tensor, attention_weights: torch.Tensor
) -> torch.Tensor:
    """Stand for the functions of mmcv, Deformable DETR and transformers."""
    sizes = torch.as_tensor(value_spatial_shapes).to(torch.int32)
    attended: torch.Tensor = _ops.multi_scale_deform_attn(
        value, sizes, sampling_locations.to(torch.float32), attention_weights
    )
    return attended


def _attention_module(
    _module: Any,
    value: torch.Tensor,
    value_spatial_shapes: Any,
    _sizes: Any,
    _starts: Any,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    *_step: Any,
) -> torch.Tensor:
    """Stand for the module of transformers."""
    return _attention(value, value_spatial_shapes, sampling_locations, attention_weights)


def _scatter(module: Any, features: torch.Tensor, coordinates: torch.Tensor, batch_size: int | None) -> torch.Tensor:
    canvas: torch.Tensor = _ops.pillar_scatter(
        features, coordinates.to(torch.int32), [int(module.ny), int(module.nx)], batch_size or 1
    )
    return canvas


def _scatter_arguments(
    module: Any, voxel_features: torch.Tensor, coors: torch.Tensor, batch_size: int | None = None
) -> torch.Tensor:
    """Stand for ``PointPillarsScatter`` of mmdetection3d."""
    return _scatter(module, voxel_features, coors, batch_size)


def _scatter_dict(module: Any, batch_dict: dict[str, Any], **_options: Any) -> dict[str, Any]:
    """Stand for ``PointPillarScatter`` of OpenPCDet."""
    features, coordinates = batch_dict["pillar_features"], batch_dict["voxel_coords"]
    return {**batch_dict, "spatial_features": _scatter(module, features, coordinates, batch_dict.get("batch_size"))}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "multi_scale_deformable_attn_pytorch": _attention,
    "ms_deform_attn_core_pytorch": _attention,
    "multi_scale_deformable_attention": _attention,
}
MODULES: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "PointPillarsScatter": (("nx", "ny"), _scatter_arguments),
    "PointPillarScatter": (("nx", "ny"), _scatter_dict),
    "MultiScaleDeformableAttention": ((), _attention_module),
}
"""By class name: the attributes that the module must have, and what stands for its forward."""
_PARAMETERS = {_attention_module: 7}
"""How many arguments the forward of a module must take, beside itself, where its name is used by several projects."""


@contextlib.contextmanager
def adapted(model: torch.nn.Module) -> Iterator[None]:
    """Replace what is known of the code that a model uses."""
    kinds = {type(module): module for module in model.modules()}
    with contextlib.ExitStack() as stack:
        for kind, module in kinds.items():
            needs, forward = MODULES.get(kind.__name__, ((), None))
            if forward is not None and all(hasattr(module, name) for name in needs) and _takes(kind, forward):
                stack.enter_context(mock.patch.object(kind, "forward", forward))
        for space in _namespaces(list(kinds)):
            found = {name: stand for name, stand in FUNCTIONS.items() if callable(space.get(name))}
            if found:
                stack.enter_context(mock.patch.dict(space, found))
        yield


def _takes(kind: type, forward: Callable[..., Any]) -> bool:
    wanted = _PARAMETERS.get(forward)
    return wanted is None or len(inspect.signature(kind.forward).parameters) == wanted + 1  # type: ignore[attr-defined]  # every module has one


def _namespaces(kinds: list[type]) -> list[dict[str, Any]]:
    """Give the global names that the methods of classes see, each once."""
    found: dict[int, dict[str, Any]] = {}
    for kind in kinds:
        for method in vars(kind).values():
            names = getattr(inspect.unwrap(method) if callable(method) else None, "__globals__", None)
            if isinstance(names, dict) and names.get("__name__") != "torch":
                found[id(names)] = names
    return list(found.values())
