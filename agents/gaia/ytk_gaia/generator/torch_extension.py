"""The same kernel as a standalone torch extension: a wrapper that is compiled in only where torch's headers are.

The bundle stays one kernel: judged, measured and shipped as C++ without torch. With ``-DYTK_TORCH_EXTENSION`` the same text is
also the source of a torch extension with one function, ``forward``, that takes and gives a list of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from ytk_core.dtypes import DType
from ytk_core.formats import shape_expr
from ytk_gaia.generator.border import Border, EmittedKernel, KernelTensor

_SCALAR_TYPE = {
    DType.FLOAT32: "at::kFloat",
    DType.FLOAT64: "at::kDouble",
    DType.FLOAT16: "at::kHalf",
    DType.BFLOAT16: "at::kBFloat16",
    DType.INT8: "at::kChar",
    DType.UINT8: "at::kByte",
    DType.INT32: "at::kInt",
    DType.INT64: "at::kLong",
    DType.BOOL: "at::kBool",
}

_TEMPLATE = """
#ifdef YTK_TORCH_EXTENSION
// Build with torch.utils.cpp_extension: the bundle's unit as the source, -DYTK_TORCH_EXTENSION, and the directory of ytk_kernel.h.
#include <torch/extension.h>
namespace {{
ytk_tensor describe(const at::Tensor& tensor, int32_t dtype) {{
  ytk_tensor described = {{}};
  described.data = tensor.data_ptr();
  described.dtype = dtype;
  described.rank = (int32_t)tensor.dim();
  described.scale = 1.0f;
  for (int64_t axis = 0; axis < tensor.dim() && axis < YTK_MAX_RANK; ++axis) described.dims[axis] = tensor.size(axis);
  return described;
}}
{helpers}}}  // namespace
std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) {{
  static const at::ScalarType types[] = {{{input_types}}};
  static const int32_t numbers[] = {{{input_numbers}}};
  TORCH_CHECK(inputs.size() == {input_count}, "{name} takes {input_count} tensors, not ", inputs.size());
  std::vector<at::Tensor> held;
  std::vector<ytk_tensor> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {{
    TORCH_CHECK(inputs[i].device().is_cpu(), "input ", i, " of {name} is not on the CPU");
    TORCH_CHECK(inputs[i].scalar_type() == types[i], "input ", i, " of {name} has the wrong dtype: ", inputs[i].scalar_type());
    held.push_back(inputs[i].contiguous());
    in.push_back(describe(held.back(), numbers[i]));
  }}
  std::vector<at::Tensor> outputs = {{{outputs}}};
  static const int32_t output_numbers[] = {{{output_numbers}}};
  for (size_t i = 0; i < outputs.size(); ++i) out.push_back(describe(outputs[i], output_numbers[i]));
  ytk_context ctx = {{}};
  ctx.size = sizeof(ctx);
  ctx.abi_version = YTK_ABI_VERSION;
  ctx.threads = at::get_num_threads();
  at::Tensor workspace = at::empty({{{workspace} + 64}}, at::kByte);
  const uintptr_t start = ((uintptr_t)workspace.data_ptr() + 63) / 64 * 64;
  ctx.workspace = (void*)start;
  ctx.workspace_bytes = (uint64_t)workspace.numel() - 64;
  const int status = ytk_launch(&ctx, in.data(), (int)in.size(), out.data(), (int)out.size());
  TORCH_CHECK(status == YTK_OK, "{name} failed with status ", status);
  return outputs;
}}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("forward", &forward, "{name}"); }}
#endif
"""


def _empty(tensor: KernelTensor) -> str:
    sizes = [shape_expr.to_c(e) if a in tensor.dynamic_axes else e for a, e in enumerate(tensor.extents)]
    return f"at::empty({{{', '.join(sizes)}}}, {_SCALAR_TYPE[tensor.dtype]})"


def _numbers(tensors: Sequence[KernelTensor]) -> str:
    return ", ".join(f"YTK_{t.dtype.value.upper()}" for t in tensors)


def wrapper(name: str, border: Border, kernel: EmittedKernel) -> str:
    """Give the text to append to a kernel's source.

    Args:
        name: The plugin's name, a C identifier.
        border: Inputs and outputs.
        kernel: For its workspace needs.
    """
    return _TEMPLATE.format(
        name=name,
        input_types=", ".join(_SCALAR_TYPE[t.dtype] for t in border.inputs),
        input_numbers=_numbers(border.inputs),
        input_count=len(border.inputs),
        outputs=", ".join(_empty(t) for t in border.outputs),
        output_numbers=_numbers(border.outputs),
        workspace="ytk_workspace(&ctx, in.data(), (int)in.size(), out.data(), (int)out.size())"
        if kernel.workspace_function
        else str(kernel.fixed_workspace_bytes),
        helpers=shape_expr.C_HELPERS,
    )
