"""The shipped plugins, one contract each. What they compute: docs/catalogue/."""

from __future__ import annotations

from ytk_core.catalogue.contract import Entry, Tensor
from ytk_core.dtypes import DType
from ytk_core.formats.plugin_meta import Tolerance

_I32, _F32 = DType.INT32, DType.FLOAT32
_SUMS = Tolerance(rtol=1e-3, atol=1e-5, source="float32 sums of some thousand products in another order")
_COPIES = Tolerance(rtol=0.0, atol=0.0, source="values are copied")
_INDICES = Tensor("indices", 2, _I32)
_CONVOLUTION = ("spatial_shape", "batch_size", "kernel_size", "stride", "padding", "dilation")
_SPARSE = ("sparse.h", "sparse_cpu.h", "sparse_cuda.h")

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="SparseSubMConv3d",
        operator="sparse_subm_conv3d",
        summary="submanifold sparse convolution, spconv.SubMConv3d",
        inputs=(Tensor("features", 2), _INDICES, Tensor("weight", 3), Tensor("bias", 1)),
        outputs=(Tensor("result", 2, shape=("in0.d0", "in2.d2")),),
        ints=("spatial_shape", "batch_size", "kernel_size", "dilation"),
        headers=_SPARSE,
        tolerance=_SUMS,
    ),
    Entry(
        name="SparseConv3d",
        operator="sparse_conv3d",
        summary="sparse convolution with a declared maximum of active voxels, spconv.SparseConv3d",
        inputs=(Tensor("features", 2), _INDICES, Tensor("weight", 3), Tensor("bias", 1)),
        outputs=(
            Tensor("result", 2, shape=("attr.max_voxels[0]", "in2.d2")),
            Tensor("result_indices", 2, _I32, shape=("attr.max_voxels[0]", "4")),
            Tensor("active", 1, _I32, shape=("1",)),
        ),
        ints=(*_CONVOLUTION, "max_voxels"),
        headers=_SPARSE,
        tolerance=_SUMS,
    ),
    Entry(
        name="SparseInverseConv3d",
        operator="sparse_inverse_conv3d",
        summary="inverse of a sparse convolution, spconv.SparseInverseConv3d",
        inputs=(
            Tensor("features", 2),
            _INDICES,
            Tensor("fine_indices", 2, _I32),
            Tensor("weight", 3),
            Tensor("bias", 1),
        ),
        outputs=(Tensor("result", 2, shape=("in2.d0", "in3.d2")),),
        ints=_CONVOLUTION,
        headers=_SPARSE,
        tolerance=_SUMS,
    ),
    Entry(
        name="SparseToDense",
        operator="sparse_to_dense",
        summary="sparse tensor to a dense grid, spconv.ToDense",
        inputs=(Tensor("features", 2), _INDICES),
        outputs=(
            Tensor(
                "dense",
                5,
                shape=(
                    "attr.batch_size[0]",
                    "in0.d1",
                    "attr.spatial_shape[0]",
                    "attr.spatial_shape[1]",
                    "attr.spatial_shape[2]",
                ),
            ),
        ),
        ints=("spatial_shape", "batch_size"),
        headers=("sparse.h", "scatter.h", "scatter_cuda.h"),
        tolerance=_COPIES,
    ),
    Entry(
        name="PillarScatter",
        operator="pillar_scatter",
        summary="pillar features onto a dense bird's-eye view",
        inputs=(Tensor("features", 2), Tensor("coordinates", 2, _I32)),
        outputs=(
            Tensor("canvas", 4, shape=("attr.batch_size[0]", "in0.d1", "attr.grid_size[0]", "attr.grid_size[1]")),
        ),
        ints=("grid_size", "batch_size"),
        headers=("sparse.h", "scatter.h", "pillar.h", "scatter_cuda.h"),
        tolerance=_COPIES,
    ),
    Entry(
        name="DeformConv2d",
        operator="deform_conv2d",
        summary="deformable convolution v2, torchvision.ops.deform_conv2d",
        inputs=(
            Tensor("image", 4),
            Tensor("offset", 4, _F32),
            Tensor("weight", 4),
            Tensor("bias", 1),
            Tensor("mask", 4),
        ),
        outputs=(Tensor("result", 4, shape=("in0.d0", "in2.d0", "in1.d2", "in1.d3")),),
        ints=("stride", "padding", "dilation", "groups", "offset_groups", "use_mask"),
        headers=("sampling.h", "deform_conv2d.h"),
        tolerance=_SUMS,
    ),
    Entry(
        name="MultiScaleDeformAttn",
        operator="multi_scale_deform_attn",
        summary="multi-scale deformable attention, the core of Deformable DETR",
        inputs=(
            Tensor("value", 4),
            Tensor("spatial_shapes", 2, _I32),
            Tensor("sampling_locations", 6, _F32),
            Tensor("attention_weights", 5),
        ),
        outputs=(Tensor("result", 3, shape=("in0.d0", "in2.d1", "in0.d2 * in0.d3")),),
        headers=("sampling.h", "multi_scale_deform_attn.h"),
        workspace=False,
        tolerance=_SUMS,
    ),
    Entry(
        name="RoiAlignPlugin",
        operator="roi_align",
        summary="RoIAlign, torchvision.ops.roi_align",
        inputs=(Tensor("features", 4), Tensor("rois", 2, _F32)),
        outputs=(Tensor("result", 4, shape=("in1.d0", "in0.d1", "attr.output_size[0]", "attr.output_size[1]")),),
        ints=("output_size", "sampling_ratio", "aligned"),
        floats=("spatial_scale",),
        headers=("roi_align.h",),
        workspace=False,
        tolerance=_SUMS,
    ),
    Entry(
        name="RotatedNms",
        operator="rotated_nms",
        summary="non-maximum suppression of rotated boxes with a fixed number of results",
        inputs=(Tensor("boxes", 2, _F32), Tensor("scores", 1)),
        outputs=(
            Tensor("kept", 1, _I32, shape=("attr.max_output[0]",)),
            Tensor("count", 1, _I32, shape=("1",)),
        ),
        ints=("max_output",),
        floats=("iou_threshold", "score_threshold"),
        headers=("rotated_nms.h",),
        tolerance=_COPIES,
    ),
)
