"""Call a shipped CPU plugin and its torch reference with the same tensors and attributes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import ytk_client.frontend.catalogue.operators
from ytk_core.abi import ctypes_abi as abi
from ytk_core.catalogue import NAMESPACE, Entry, plain_attributes
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import DeploymentTarget

from fakes.plugin_calls import aligned, as_aligned, context, launch, workspace_bytes

assert ytk_client.frontend.catalogue.operators  # it registers the references

Load = Callable[[KernelBundle], abi.Table]
TYPES = {"ints": 1, "floats": 2}


def reference(entry: Entry, tensors: list[torch.Tensor], attributes: Mapping[str, Any]) -> list[torch.Tensor]:
    """What the torch operator gives."""
    operator = getattr(getattr(torch.ops, NAMESPACE), entry.operator)
    result = operator(*tensors, *(attributes[name] for name in (*entry.ints, *entry.floats)))
    return list(result) if isinstance(result, tuple) else [result]


def node_attributes(entry: Entry, attributes: Mapping[str, Any]) -> Any:
    """The attributes as an engine's host hands them to a kernel; what they point to lives with the array."""
    plain = plain_attributes(attributes)
    names = [*entry.ints, *entry.floats]
    array = (abi.Attr * len(names))()
    keep = []
    for place, name in zip(array, names, strict=True):
        values = plain[name]
        place.name, place.count = name.encode(), len(values)
        place.type = TYPES["floats" if name in entry.floats else "ints"]
        if name in entry.floats:
            keep.append((ctypes.c_double * len(values))(*values))
            place.floats = keep[-1]
        else:
            keep.append((ctypes.c_int64 * len(values))(*values))
            place.ints = keep[-1]
    array.keep = keep
    return array


def run_plugin(
    load: Load,
    entry: Entry,
    tensors: list[torch.Tensor],
    attributes: Mapping[str, Any],
    shapes: list[tuple[int, ...]],
    *,
    threads: int = 1,
) -> tuple[int, list[torch.Tensor]]:
    """Build the CPU plugin for these attributes, call it; gives the status and the outputs.

    Outputs and workspace hold garbage before the call, as in an engine.
    """
    bundle = entry.bundle(DeploymentTarget.CPU, attributes)
    table = load(bundle)
    inputs = [as_aligned(tensor.numpy(), tensor.numpy().dtype) for tensor in tensors]
    types = [str(each.dtype or "float32") for each in entry.outputs]
    outputs = [aligned(shape, np.dtype(kind)) for shape, kind in zip(shapes, types, strict=True)]
    for output in outputs:
        output.view(np.uint8)[...] = 0xC5
    attrs = node_attributes(entry, attributes)
    workspace = None
    if entry.workspace:
        size = workspace_bytes(table, context(attrs=attrs, threads=threads), inputs, outputs)
        if size < 0:
            return -size, []
        workspace = aligned((size,), np.uint8)
        workspace[...] = 0xA7
    status = launch(table, context(attrs=attrs, threads=threads, workspace=workspace), inputs, outputs)
    return status, [torch.from_numpy(np.array(output)) for output in outputs]
