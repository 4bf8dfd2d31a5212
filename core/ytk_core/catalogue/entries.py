"""The shipped plugins, one contract each. What they compute: docs/catalogue.md."""

from __future__ import annotations

from ytk_core.catalogue.contract import Entry, Tensor
from ytk_core.dtypes import DType
from ytk_core.formats.plugin_meta import Tolerance

_I32 = DType.INT32
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
)
