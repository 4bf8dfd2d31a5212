"""Which element types a CUDA bundle's variants store the border's tensors as; what is computed with stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Format, Role
from ytk_gaia.generator.border import Border, KernelTensor

_SHORT = {DType.FLOAT32: "f32", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16", DType.FLOAT64: "f64"}
_PRECISION = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}
_FLOATS = frozenset(_SHORT)


@dataclass(frozen=True)
class StorageVariant:
    """One choice of storage types.

    Attributes:
        id: Word for the contract and for kernel names.
        stored: Captured type to the type that tensors of it are stored as; not listed: as captured.
        packed: Names of the tensors that are in kHWC8: channels last, a multiple of eight of them.
    """

    id: str
    stored: dict[DType, DType] = field(default_factory=dict)
    packed: frozenset[str] = frozenset()

    def of(self, tensor: KernelTensor) -> DType:
        """Give the type that a border tensor is stored as."""
        return self.stored.get(tensor.dtype, tensor.dtype)

    def format_of(self, tensor: KernelTensor) -> Format:
        """Give the layout that a border tensor is stored in."""
        return Format.HWC8 if tensor.name in self.packed else Format.LINEAR


def captured(border: Border) -> StorageVariant:
    """Give the variant that stores everything as captured."""
    floats = sorted({_SHORT[t.dtype] for t in (*border.inputs, *border.outputs) if t.dtype in _FLOATS})
    return StorageVariant("_".join(floats) or "plain")


def packable(border: Border, roles: Sequence[Role]) -> frozenset[str]:
    """Give the names of the tensors that would be kHWC8, or none where the region does not allow it.

    Every floating-point activation and output has to be an image (N, C, H, W) of fixed C, H and W, C a multiple of eight: then
    nothing is padded. Parameters stay linear.
    """
    activations = [t for t, role in zip(border.inputs, roles, strict=True) if role is Role.ACTIVATION]
    images = [t for t in (*activations, *border.outputs) if t.dtype in _FLOATS]
    fits = all(len(t.shape) == 4 and not set(t.dynamic_axes) - {0} and t.shape[1] % 8 == 0 for t in images)
    return (
        frozenset(t.name for t in images) if images and fits and all(0 not in t.shape for t in images) else frozenset()
    )


def with_layouts(
    variants: Sequence[StorageVariant], border: Border, roles: Sequence[Role], layout: str
) -> tuple[StorageVariant, ...]:
    """Add what ``--config layout`` asks for: ``auto`` and ``khwc8`` add fp16 in kHWC8 where the region allows it.

    Raises:
        UserError: kHWC8 was asked for, and the region does not allow it.
    """
    halves = [v for v in variants if DType.FLOAT16 in v.stored.values()] + [v for v in variants if v.id == "f16"]
    packed = packable(border, roles) if halves and layout != "linear" else frozenset()
    if packed:
        return (*variants, replace(halves[0], id=f"{halves[0].id}_hwc8", packed=packed))
    if layout == "khwc8":
        raise UserError(
            "--config layout=khwc8: the region does not allow it",
            code="layout_not_available",
            hint="It needs fp16, and every activation and output has to be N, C, H, W with C a multiple of 8 and fixed C, H, W.",
        )
    return tuple(variants)


def tensorrt_variants(border: Border, arch: ArchSpec, precision: str) -> tuple[StorageVariant, ...]:
    """Give the variants of a TensorRT plugin: fp32 and fp16, unless one precision was asked for or captured.

    TensorRT has no float64; before 10 it has no int64 and no bfloat16 either, and hands int32 and float32 over in their place.

    Args:
        border: Of the region.
        arch: A GPU arch spec; its engine decides which types there are.
        precision: ``captured``, ``fp32``, ``fp16`` or ``bf16``.

    Raises:
        UserError: This TensorRT has no tensors of the precision.
    """
    major = int(arch.engine.removeprefix("trt")[:-1] or 0)
    dtypes = {t.dtype for t in (*border.inputs, *border.outputs)}
    narrowed = {DType.INT64: DType.INT32} if major < 10 and DType.INT64 in dtypes else {}
    floats = dtypes & _FLOATS
    if not floats:
        return (StorageVariant("plain", narrowed),)
    wanted: Sequence[DType] = [_PRECISION[precision]] if precision in _PRECISION else []
    if not wanted and floats == {DType.BFLOAT16} and major >= 10:
        wanted = [DType.BFLOAT16]
    elif not wanted:
        wanted = [DType.FLOAT16] if floats == {DType.FLOAT16} else [DType.FLOAT32, DType.FLOAT16]
    if DType.BFLOAT16 in wanted and major < 10:
        raise UserError(
            f"TensorRT {major} has no bfloat16 tensors ({arch})",
            code="precision_not_available",
            hint="Use --config precision=fp16 or fp32, or build for TensorRT 10 or later.",
        )
    return tuple(StorageVariant(_SHORT[target], {**narrowed, **dict.fromkeys(floats, target)}) for target in wanted)
