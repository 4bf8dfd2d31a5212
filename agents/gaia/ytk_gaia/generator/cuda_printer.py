"""The printer of loop bodies for GPUs, and the header that its text needs.

The scalar operations are those of ``ytk_loops.h``, one set for all devices: ``ytk_device_std.h`` gives a device compiler the part
of the standard library that they use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib import resources
from typing import Any, ClassVar

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator import loop_printer
from ytk_gaia.generator.cpp_printer import printable_operations, runtime_header
from ytk_gaia.generator.index_printer import IndexPrinter, c_type, print_index
from ytk_gaia.generator.nest import Nest

# What has no form on a device: these are functions of a real order in libstdc++, CUDA has them of order 0 and 1 only.
_NO_DEVICE_FORM = frozenset({"airy_ai"})
_HOST_PART = """\
namespace ytk {
struct half {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};
inline Extent3 blocks_for(int64_t items, int64_t per_block, int64_t most) {
  const int64_t wanted = (items + per_block - 1) / per_block;
  return Extent3{(uint32_t)(wanted < most ? wanted : most)};
}
}  // namespace ytk
"""


@functools.cache
def _cuda_header(name: str) -> str:
    return resources.files("ytk_gaia").joinpath("cuda", name).read_text(encoding="utf-8")


def cuda_header(source: str) -> str:
    """Give the header of a CUDA bundle: device code for the device compiler, types and launch sizes for the launcher's."""
    scalar = re.sub(r"^#include <\w+>\n", "", runtime_header(source), flags=re.MULTILINE)
    scalar = scalar.replace("#ifdef _OPENMP\n#include <omp.h>\n#endif\n", "")
    for name, value in (("infinity", "infinity"), ("not_a_number", "quiet_NaN")):
        constant = f"static const double {name} = std::numeric_limits<double>::{value}();\n"
        scalar = scalar.replace(constant, f"YTK_DOUBLE_CONSTANT({name}, {value})\n")
    device = f"{_cuda_header('ytk_device_std.h')}{scalar}{_cuda_header('ytk_blocks.h')}"
    return f'#include "ytk_cuda.h"\n#if defined(__CUDACC__)\n{device}#else\n{_HOST_PART}#endif\n'


class ShortIndexPrinter(IndexPrinter):
    """Index expressions over int32_t variables, for regions whose every index fits: 64-bit division is a call on a GPU."""

    def _print_Integer(self, expr: Any) -> str:  # noqa: N802 -- sympy's dispatch
        return str(int(expr)) if abs(int(expr)) < 1 << 31 else f"{int(expr)}L"


class CudaLoopPrinter(loop_printer.LoopPrinter):
    """Scalar operations as calls of the functions in ``ytk_loops.h``; memory and scatters as a GPU wants them."""

    short: ClassVar[bool] = False
    """Whether every index of the region fits 32 bits."""
    scattering: ClassVar[bool] = False
    """Whether the nest writes into a buffer that others have written: two of its iterations may meet at one element."""

    @classmethod
    def printable(cls) -> frozenset[str]:
        """Give the operations that have a device form."""
        return printable_operations() - _NO_DEVICE_FORM

    def _index_text(self, index: Any) -> str:
        if not self.short:
            return print_index(index)
        return str(ShortIndexPrinter().doprint(sympy.sympify(index)))

    def _element(self, name: str, index: Any) -> str:
        return f"{self._pointer_of(name)}[{self._index_text(self._index(index))}]"

    def load(self, name: str, index: Any) -> str:
        """Read one element; as what it is computed with, whatever a variant stores it as."""
        self._nest.reads.add(name)
        return self._let(f"ytk::cast<{c_type(self._dtype_of(name))}>(ytk::load({self._element(name, index)}))")

    def store(self, name: str, index: Any, value: str, mode: str | None = None) -> None:
        """Write one element; in a scatter only if it is this thread's."""
        if mode is not None:
            super().store(name, index, value, mode)
            self._nest.targets.append(index)
            return
        self._nest.writes.add(name)
        statement = f"ytk::store({self._element(name, index)}, {value});"
        if self.scattering:
            self._nest.targets.append(index)
            statement = f"if (owns({print_index(index)})) {statement}"
        self._say(statement)

    def _join(self, target: str, join: str, value: str) -> None:
        place = target.partition("[")[2].removesuffix("]")
        statement = f"ytk::scatter_{join}<atomic>({target}, {value});" if join else f"ytk::store({target}, {value});"
        self._say(f"if (owns({place})) {statement}")

    def store_reduction(self, name: str, index: Any, value: str) -> None:
        """Write the result of a reduction after its loops."""
        self._nest.writes.add(name)
        self._nest.epilogue.append(f"ytk::store({self._element(name, index)}, {value});")

    def indirect_indexing(self, var: str, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
        """Turn a computed value into an index; remembers how many values it can have."""
        symbol = super().indirect_indexing(var, size, check, wrap_neg)
        if check or wrap_neg:
            self._nest.bounds[symbol.name] = size
        return symbol

    def reduction(self, dtype: Any, src_dtype: Any, reduction_type: str, value: Any) -> Any:
        """Add one step of a reduction, and say how threads join what they have."""
        first = len(self._nest.state)
        result = super().reduction(dtype, src_dtype, reduction_type, value)
        added = self._nest.state[first:]
        names = [v.name for v in added]
        others = [f"other_{name}" for name in names]
        if reduction_type in {"argmax", "argmin"}:
            largest = str(reduction_type == "argmax").lower()
            self._nest.joins.append(f"ytk::join_arg<{largest}>({', '.join(names + others)});")
        elif reduction_type == "welford_reduce":
            self._nest.joins.append(f"ytk::join_welford({', '.join(names + others)});")
        else:
            self._nest.joins += [
                f"{v.name} = {v.combine.format(a=v.name, b=f'other_{v.name}')};" for v in added if v.combine
            ]
        return result


def print_nest(
    operation: Any, pointer_of: Callable[[str], str], dtype_of: Callable[[str], torch.dtype], *, short: bool
) -> Nest:
    """Print one computed buffer for a GPU; see :func:`ytk_gaia.generator.loop_printer.print_nest`."""
    mutates = isinstance(operation.layout, inductor.ir.MutationLayoutSHOULDREMOVE)

    class Printer(CudaLoopPrinter):
        pass

    Printer.short, Printer.scattering = short, mutates
    return loop_printer.print_nest(Printer, operation, pointer_of, dtype_of)
