"""The frame of a kernel: it compiles, loads, touches no memory, and fails every inference with a documented status. Pure.

What makes it a skeleton is the line ``#define YTK_SKELETON``. Without that line and with nothing written it does not compile, so
that a kernel which was forgotten never computes silently nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ytk_client.handwritten.contract import contract_of
from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import C_TYPE, DType
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import BY_HAND, SKELETON, DeploymentTarget, PluginMeta, Variant
from ytk_core.formats.region import RegionSpec, RegionTensor

STATUS = "YTK_UNSUPPORTED"
"""What the launcher of a skeleton returns, 8 in ``enum ytk_status``."""

_MARK = re.compile(r"^[ \t]*#[ \t]*define[ \t]+YTK_SKELETON\b", re.MULTILINE)
_MARK_LINE = "#define YTK_SKELETON  // Delete this line when the kernel is written: until then every inference fails with status 8.\n"
_LAUNCH = (
    'extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {\n'
)


class Skeleton(msgspec.Struct, frozen=True, kw_only=True):
    """A skeleton, and what in its contract has to be looked at: a sentence each."""

    bundle: KernelBundle
    guesses: tuple[str, ...]


def make_skeleton(spec: RegionSpec, arch: ArchSpec) -> Skeleton:
    """Give the skeleton of a kernel for a region on a target.

    Raises:
        UserError: As :func:`ytk_client.handwritten.contract.contract_of`.
    """
    contract = contract_of(spec, arch)
    cuda = contract.meta.deployment_target is DeploymentTarget.TENSORRT
    text = _cuda_source(spec, contract.meta) if cuda else _cpu_source(spec, contract.meta)
    header = '#include "ytk_cuda.h"\n' if cuda else "#include <cmath>\n#include <cstdint>\n"
    return Skeleton(bundle=KernelBundle(header=header, source=text, meta=contract.meta), guesses=contract.guesses)


def is_skeleton(bundle: KernelBundle) -> bool:
    """Whether a kernel is not written yet."""
    return _MARK.search(bundle.header) is not None or _MARK.search(bundle.source) is not None


def with_state(bundle: KernelBundle) -> KernelBundle:
    """Give the bundle with ``generator.strategy`` saying whether the kernel is written; others than ours stay as they are."""
    strategy = SKELETON if is_skeleton(bundle) else BY_HAND
    if bundle.meta.generator.strategy not in {SKELETON, BY_HAND} or bundle.meta.generator.strategy == strategy:
        return bundle
    generator = msgspec.structs.replace(bundle.meta.generator, strategy=strategy)
    return msgspec.structs.replace(bundle, meta=msgspec.structs.replace(bundle.meta, generator=generator))


# ---- text ------------------------------------------------------------------------------------------------------------


def _head(spec: RegionSpec, meta: PluginMeta) -> str:
    lines = [
        f"// {meta.plugin_namespace}::{meta.plugin_name}, to be written by hand.",
        f"// It computes: {', '.join(spec.aten_ops) or 'see the region'}"
        + (f"  ({spec.module_path})" if spec.module_path else ""),
        "//",
        *(_tensor_line("in", index, tensor) for index, tensor in enumerate(spec.inputs)),
        *(_tensor_line("out", index, tensor) for index, tensor in enumerate(spec.outputs)),
        "//",
        "// The launcher allocates nothing, keeps no pointer, writes nothing but outputs and workspace, and returns YTK_OK or another",
        "// value of enum ytk_status (ytk_kernel.h). Shapes, types and formats were checked against PLUGIN_META before it is called.",
        _MARK_LINE,
    ]
    return "\n".join(lines) + "\n"


def _tensor_line(kind: str, index: int, tensor: RegionTensor) -> str:
    dims = ", ".join("?" if axis in tensor.dynamic_axes else str(extent) for axis, extent in enumerate(tensor.shape))
    role = f", {tensor.role}" if kind == "in" and tensor.role != "activation" else ""
    return f"// {kind}[{index}]  {tensor.name}: {tensor.dtype} [{dims}]{role}"


def _type(dtype: DType, *, cuda: bool) -> str:
    if dtype is DType.BFLOAT16:
        return "uint16_t"  # the bits
    if dtype is DType.FLOAT16 and not cuda:
        return "_Float16"
    return C_TYPE[dtype]


def _cpu_source(spec: RegionSpec, meta: PluginMeta) -> str:
    types = meta.variants[0]
    arguments = [
        *(f"  [[maybe_unused]] const {_type(t.dtype, cuda=False)}* in{i} = static_cast<const {_type(t.dtype, cuda=False)}*>(in[{i}].data);" for i, t in enumerate(types.inputs)),
        *(f"  [[maybe_unused]] {_type(t.dtype, cuda=False)}* out{i} = static_cast<{_type(t.dtype, cuda=False)}*>(out[{i}].data);" for i, t in enumerate(types.outputs)),
    ]  # fmt: skip
    return (
        _head(spec, meta)
        + _LAUNCH
        + f"  if (nin != {len(meta.inputs)} || nout != {len(meta.outputs)}) return YTK_BAD_ARITY;\n"
        + "\n".join(arguments)
        + "\n"
        + "#ifdef YTK_SKELETON\n"
        + "  (void)ctx;\n"
        + f"  return {STATUS};\n"
        + "#else\n"
        + "  // Extents are in in[0].dims[0], ...; split the work over ctx->threads, e.g. with\n"
        + "  //   #pragma omp parallel for num_threads(ctx->threads)\n"
        + '  #error "write the kernel here, and put `return YTK_OK;` in place of this line"\n'
        + "#endif\n"
        + "}\n"
    )


def _cuda_source(spec: RegionSpec, meta: PluginMeta) -> str:
    base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", meta.plugin_name).lower()
    kernels = [(f"{base}_{re.sub(r'[^a-zA-Z0-9]', '_', variant.id)}", variant) for variant in meta.variants]
    names = [*(f"in{i}" for i in range(len(meta.inputs))), *(f"out{i}" for i in range(len(meta.outputs)))]
    declared = "".join(f"YTK_KERNEL({name}, {_parameters(variant, names)});\n" for name, variant in kernels)
    differing = _differing(meta.variants)
    template = f"template <class T>\n__device__ void {base}({_parameters(meta.variants[0], names, differing)}) {{\n"
    entries = "".join(
        f'extern "C" __global__ void {name}({_parameters(variant, names)}) {{\n'
        f"  {base}<{_first(variant, differing)}>({', '.join(names)}, count);\n}}\n"
        for name, variant in kernels
    )
    launches = "".join(
        f"  if (ctx->variant == {number})\n    return {name}.launch(ctx, grid, block, 0, {_arguments(variant)}, count);\n"
        for number, (name, variant) in enumerate(kernels)
    )
    return (
        _head(spec, meta)
        + "constexpr int kThreads = 256;\n"
        + declared
        + "\n#ifdef __CUDACC__\n"
        + "// One thread an element of the first output. Mark every function of device code __device__.\n"
        + template
        + "  const int64_t k = blockIdx.x * int64_t(kThreads) + threadIdx.x;\n"
        + "  if (k >= count) return;\n"
        + "#ifndef YTK_SKELETON\n"
        + '#error "write out0[k] here, in place of these three lines"\n'
        + "#endif\n"
        + "}\n"
        + entries
        + "#else\n"
        + _LAUNCH
        + f"  if (nin != {len(meta.inputs)} || nout != {len(meta.outputs)}) return YTK_BAD_ARITY;\n"
        + "#ifdef YTK_SKELETON\n"
        + f"  return {STATUS};\n"
        + "#endif\n"
        + "  int64_t count = 1;\n"
        + "  for (int axis = 0; axis < out[0].rank; ++axis) count *= out[0].dims[axis];\n"
        + "  const ytk::Extent3 grid{static_cast<uint32_t>((count + kThreads - 1) / kThreads)}, block{kThreads};\n"
        + launches
        + "  return YTK_BAD_VARIANT;\n"
        + "}\n"
        + "#endif\n"
    )


def _differing(variants: Sequence[Variant]) -> frozenset[int]:
    """Give the tensors whose type is not the same in every variant, numbered inputs first; all floats where there is one variant."""
    columns = list(zip(*([t.dtype for t in (*v.inputs, *v.outputs)] for v in variants), strict=True))
    differing = frozenset(index for index, column in enumerate(columns) if len(set(column)) > 1)
    return differing or frozenset(range(len(columns))[-1:])


def _first(variant: Variant, differing: frozenset[int]) -> str:
    types = [*variant.inputs, *variant.outputs]
    return _type(types[min(differing)].dtype, cuda=True)


def _parameters(variant: Variant, names: Sequence[str], templated: frozenset[int] = frozenset()) -> str:
    types = [*variant.inputs, *variant.outputs]
    parts = []
    for index, (name, tensor) in enumerate(zip(names, types, strict=True)):
        word = "T" if index in templated else _type(tensor.dtype, cuda=True)
        parts.append(f"{'const ' if index < len(variant.inputs) else ''}{word}* {name}")
    return ", ".join([*parts, "int64_t count"])


def _arguments(variant: Variant) -> str:
    parts = [f"static_cast<const {_type(t.dtype, cuda=True)}*>(in[{i}].data)" for i, t in enumerate(variant.inputs)]
    parts += [f"static_cast<{_type(t.dtype, cuda=True)}*>(out[{i}].data)" for i, t in enumerate(variant.outputs)]
    return ", ".join(parts)
