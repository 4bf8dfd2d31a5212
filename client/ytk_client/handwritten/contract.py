"""From a region's border to the contract that a kernel written by hand starts from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import metadata

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import (
    SCHEMA_VERSION,
    SKELETON,
    DeploymentTarget,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    TensorType,
    Tolerance,
    Variant,
)
from ytk_core.formats.plugin_meta_checks import validate
from ytk_core.formats.region import RegionSpec, RegionTensor
from ytk_core.preflight import engine_dtype

_SHORT = {DType.FLOAT32: "f32", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16", DType.FLOAT64: "f64"}
_LOWER = (DType.FLOAT32, DType.FLOAT16)
_TOLERANCE = Tolerance(rtol=1e-4, atol=1e-5, source="for a float32 kernel written by hand; change it with the kernel")


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """A contract, and which of its output extents were inferred from sizes alone: a sentence each."""

    meta: PluginMeta
    guesses: tuple[str, ...]


def contract_of(spec: RegionSpec, arch: ArchSpec) -> Contract:
    """Give the contract for a region on a target.

    Its types are those that the engine hands over (:func:`ytk_core.preflight.engine_dtype`). For TensorRT a region of float32 or float16
    gets a variant of each.

    Raises:
        UserError: ``no_variant_for_engine``: the engine gives plugins no such type.
    """
    tensorrt = arch.engine_name == "tensorrt"
    names = _identifiers(spec)
    shapes, guesses = _output_shapes(spec)
    outputs = names[len(spec.inputs) :]
    meta = PluginMeta(
        schema_version=SCHEMA_VERSION,
        plugin_namespace=spec.namespace,
        plugin_name=spec.name,
        plugin_version=spec.version,
        deployment_target=DeploymentTarget.TENSORRT if tensorrt else DeploymentTarget.CPU,
        inputs=[
            InputDecl(name=name, rank=len(tensor.shape), dims=list(_dims(tensor)), role=tensor.role)
            for name, tensor in zip(names, spec.inputs, strict=False)
        ],
        outputs=[
            OutputDecl(name=name, rank=len(tensor.shape), shape=shape)
            for name, tensor, shape in zip(outputs, spec.outputs, shapes, strict=True)
        ],
        variants=list(_variants(spec, arch)),
        launcher=Launcher(),
        tolerance=_TOLERANCE,
        generator=Generator(
            name="ytk-kernelgen",
            version=metadata.version("yasp-toolkit"),
            torch=spec.torch_version or None,
            strategy=SKELETON,
        ),
        region_digest=spec.digest,
        extents=list(spec.extents),
        sites=spec.sites,
    )
    validate(meta)
    return Contract(meta=meta, guesses=guesses)


def _dims(tensor: RegionTensor) -> Iterator[int | None]:
    for axis, extent in enumerate(tensor.shape):
        yield None if axis in tensor.dynamic_axes else extent


def _identifiers(spec: RegionSpec) -> list[str]:
    """Give every tensor a name that is a C identifier and nobody else's."""
    found: list[str] = []
    for index, tensor in enumerate((*spec.inputs, *spec.outputs)):
        name = re.sub(r"\W", "_", tensor.name, flags=re.ASCII) or f"tensor{index}"
        name = f"_{name}" if name[0].isdigit() else name
        found.append(name if name not in found else f"{name}_{index}")
    return found


def _variants(spec: RegionSpec, arch: ArchSpec) -> Iterator[Variant]:
    def types(tensors: Sequence[RegionTensor], floats: DType | None) -> list[TensorType]:
        handed = [engine_dtype(tensor.dtype, arch) for tensor in tensors]
        return [TensorType(dtype=floats if floats and dtype in _LOWER else dtype) for dtype in handed]

    captured = {engine_dtype(tensor.dtype, arch) for tensor in (*spec.inputs, *spec.outputs)}
    if arch.engine_name == "tensorrt" and captured & set(_LOWER):
        for floats in _LOWER:
            yield Variant(id=_SHORT[floats], inputs=types(spec.inputs, floats), outputs=types(spec.outputs, floats))
        return
    first = next((dtype for dtype in captured if dtype in _SHORT), None)
    name = _SHORT[first] if first is not None else "only"
    yield Variant(id=name, inputs=types(spec.inputs, None), outputs=types(spec.outputs, None))


def _output_shapes(spec: RegionSpec) -> tuple[list[list[str]], tuple[str, ...]]:
    """Give every output's extents as expressions, and say which were inferred from the captured sizes.

    Raises:
        UserError: ``unknown_extent``: an open output axis has no size in common with an open input axis.
    """
    shapes, guesses = [], []
    for tensor in spec.outputs:
        shape = []
        for axis, extent in enumerate(tensor.shape):
            if axis not in tensor.dynamic_axes:
                shape.append(str(extent))
                continue
            text, certain = _open_extent(spec, tensor, axis)
            shape.append(text)
            if not certain:
                guesses.append(f"output {tensor.name} axis {axis} is taken for {text} (captured: {extent})")
        shapes.append(shape)
    return shapes, tuple(guesses)


def _open_extent(spec: RegionSpec, tensor: RegionTensor, axis: int) -> tuple[str, bool]:
    """Give the expression of an open output axis, and whether only one open input axis has its size."""
    extent = tensor.shape[axis]
    opened = [
        (place != axis or len(source.shape) != len(tensor.shape), f"in{index}.d{place}", source.shape[place])
        for index, source in enumerate(spec.inputs)
        for place in source.dynamic_axes
    ]
    # An axis in the same place is the likeliest to go through.
    opened.sort(key=lambda each: each[0])
    same = [name for _, name, size in opened if size == extent]
    if same:
        return same[0], len(same) == 1
    for _, name, size in opened:
        if size and extent % size == 0:
            return f"{name} * {extent // size}", False
        if extent and size % extent == 0:
            return f"{name} // {size // extent}", False
    msg = f"output {tensor.name} axis {axis} (captured: {extent}) is open, and no open input axis has a size that gives it"
    raise UserError(
        msg,
        code="unknown_extent",
        hint="Prepare the model without --dynamic for a skeleton, then write the output's expression into PLUGIN_META by hand.",
    )
