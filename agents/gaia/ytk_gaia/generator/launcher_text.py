"""Parts of a kernel's source that are the same on every device: baked constants, checks of what the launcher is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from ytk_gaia.generator.border import Border, KernelTensor
from ytk_gaia.generator.index_printer import STORAGE_TYPE, c_type, print_condition, print_index
from ytk_gaia.generator.lowering import CannotLowerError
from ytk_gaia.generator.memory_plan import Plan
from ytk_gaia.generator.schedules import extent_text

MAX_RANK = 8
MAX_BAKED_BYTES = 1 << 20
"""Constants become C++ arrays; beyond this a bundle is no source text any more."""


def _literal(value: Any, dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        number = float(value)
        if number != number:  # noqa: PLR0124 -- NaN
            return "NAN"
        if number in {float("inf"), float("-inf")}:
            return "INFINITY" if number > 0 else "-INFINITY"
        return number.hex()
    return "INT64_MIN" if int(value) == -(2**63) else str(int(value))


def baked_constant(pointer: str, tensor: torch.Tensor) -> str:
    """Print a tensor as a static array; halves as their bits."""
    size = tensor.numel() * tensor.element_size()
    if size > MAX_BAKED_BYTES:
        raise CannotLowerError([f"a constant of {size} bytes, more than {MAX_BAKED_BYTES}"])
    flat = tensor.detach().contiguous().reshape(-1)
    if tensor.dtype in {torch.float16, torch.bfloat16}:
        values = [f"{{{int(v) & 0xFFFF}}}" for v in flat.view(torch.int16).tolist()]
    else:
        values = [_literal(v, tensor.dtype) for v in flat.tolist()]
    c = c_type(tensor.dtype, STORAGE_TYPE)
    return f"alignas(64) const {c} {pointer}[{max(1, len(values))}] = {{{', '.join(values)}}};"


def dims_table(tensor: KernelTensor) -> str:
    """Give the table of a tensor's extents; -1: dynamic."""
    shown = ["-1" if axis in tensor.dynamic_axes else str(n) for axis, n in enumerate(tensor.shape)]
    return "{" + ", ".join(shown) + "}" if shown else "{0}"


def extent_constants(plan: Plan) -> list[str]:
    """Print the dynamic extents as constants."""
    lines = []
    for symbol, (index, axis, _) in plan.symbols.items():
        lines.append(f"const int64_t {print_index(symbol)} = in[{index}].dims[{axis}]; (void){print_index(symbol)};")
    return lines


def dynamic_checks(plan: Plan, border: Border, guards: Sequence[Any]) -> list[str]:
    """Print what dims must be to one another, and the conditions that the loops rely on."""
    equalities = list(plan.equalities)
    for index, (tensor, output) in enumerate(zip(border.outputs, plan.graph.graph_outputs, strict=True)):
        sizes = [sympy.sympify(n) for n in output.get_size()]
        equalities += [(f"out[{index}].dims[{axis}]", sizes[axis]) for axis in tensor.dynamic_axes]
    # torch takes a dynamic extent to be at least two, unless told otherwise, and simplifies by that.
    lines = [
        f"if (in[{index}].dims[{axis}] < {low}) return YTK_BAD_SHAPE;"
        for (index, axis), (low, _) in border.ranges.items()
        if low
    ]
    lines += [f"if ({dim} != {extent_text(plan.extent(size))}) return YTK_BAD_SHAPE;" for dim, size in equalities]
    for guard in guards:
        if not guard.free_symbols <= plan.symbols.keys():
            raise CannotLowerError([f"condition {guard} on an extent"])
        lines.append(f"if (!{print_condition(guard)}) return YTK_BAD_SHAPE;")
    return lines


CHECK = """\
int check(const ytk_tensor& tensor, int dtype, int rank, const int64_t* dims) {
  if (tensor.dtype != dtype || tensor.format != YTK_LINEAR) return YTK_BAD_DTYPE;
  if (tensor.rank != rank) return YTK_BAD_SHAPE;
  int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) {
    if (tensor.dims[axis] < 0 || (dims[axis] >= 0 && tensor.dims[axis] != dims[axis])) return YTK_BAD_SHAPE;
    count *= tensor.dims[axis];
  }
  return tensor.data == nullptr && count != 0 ? YTK_BAD_SHAPE : YTK_OK;
}"""


def indented(lines: Iterable[str]) -> list[str]:
    """Indent by braces, for whoever reads a generated kernel."""
    result, depth = [], 0
    for line in "\n".join(lines).splitlines():
        text = line.strip()
        opened, closed = text.count("{"), text.count("}")
        leading = len(text) - len(text.lstrip("}"))
        level = 0 if text.startswith("#") else max(0, depth - leading)
        result.append("  " * level + text if text else "")
        depth = max(0, depth + opened - closed)
    return result


def check_ranks(border: Border) -> None:
    """Check that every tensor fits the launcher's ABI.

    Raises:
        CannotLowerError: One has more than :data:`MAX_RANK` dims.
    """
    for tensor in (*border.inputs, *border.outputs):
        if len(tensor.shape) > MAX_RANK:
            raise CannotLowerError([f"rank {len(tensor.shape)} of {tensor.name}"])
