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
from ytk_gaia.generator.cuda_rows import Held, Kept, RowPlan, length, together
from ytk_gaia.generator.cuda_schedules import WARP
from ytk_gaia.generator.index_printer import IndexPrinter, c_type, print_index
from ytk_gaia.generator.nest import Nest, NestKind, ScanParts, loop_variables

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
    if "ytk::gemm_tile" in source or "ytk::attention_" in source:
        device += _cuda_header("ytk_mma.h") + _cuda_header("ytk_gemm.h")
    if "ytk::attention_" in source:
        device += _cuda_header("ytk_attention.h")
    return f'#include "ytk_cuda.h"\n#if defined(__CUDACC__)\n{device}#else\n{_HOST_PART}#endif\n'


class ShortIndexPrinter(IndexPrinter):
    """Index expressions over int32_t variables, for regions whose every index fits: 64-bit division is a call on a GPU."""

    def _print_Integer(self, expr: Any) -> str:  # noqa: N802 -- sympy's dispatch
        return str(int(expr)) if abs(int(expr)) < 1 << 31 else f"{int(expr)}L"


def index_text(index: Any, *, short: bool) -> str:
    """Print an index."""
    return str(ShortIndexPrinter().doprint(sympy.sympify(index))) if short else print_index(index)


class CudaLoopPrinter(loop_printer.LoopPrinter):
    """Scalar operations as calls of the functions in ``ytk_loops.h``; memory and scatters as a GPU wants them."""

    short: ClassVar[bool] = False
    """Whether every index of the region fits 32 bits."""
    scattering: ClassVar[bool] = False
    """Whether the nest writes into a buffer that others have written: two of its iterations may meet at one element."""

    relaid: ClassVar[Callable[[str, Any], Any] | None] = None
    """Gives another index for a buffer that is laid out in another way than the loops take it to be."""

    @classmethod
    def printable(cls) -> frozenset[str]:
        """Give the operations that have a device form."""
        return printable_operations() - _NO_DEVICE_FORM

    def _index_text(self, index: Any) -> str:
        return index_text(index, short=self.short)

    def _where(self, name: str, index: Any) -> Any:
        """Give the simplified index of an element in memory."""
        relaid = type(self).relaid
        return self._index(index if relaid is None else relaid(name, index))

    def _element(self, name: str, index: Any) -> str:
        return f"{self._pointer_of(name)}[{self._index_text(index)}]"

    def load(self, name: str, index: Any) -> str:
        """Read one element; as what it is computed with, whatever a variant stores it as."""
        self._nest.reads.add(name)
        index = self._where(name, index)
        self._nest.loads.append((name, index))
        return self._let(self._loaded(name, index))

    def _loaded(self, name: str, index: Any) -> str:
        """Print the value of an element."""
        return f"ytk::cast<{c_type(self._dtype_of(name))}>(ytk::load({self._element(name, index)}))"

    def _stored(self, name: str, index: Any, value: str) -> str:
        """Print the assignment to an element."""
        return f"ytk::store({self._element(name, index)}, {value});"

    def store(self, name: str, index: Any, value: str, mode: str | None = None) -> None:
        """Write one element; in a scatter only if it is this thread's."""
        if mode is not None:
            super().store(name, index, value, mode)
            self._nest.targets.append(index)
            return
        self._nest.writes.add(name)
        simple = self._where(name, index)
        self._nest.stores.append((name, simple))
        statement = self._stored(name, simple, value)
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
        index = self._where(name, index)
        self._nest.stores.append((name, index))
        self._nest.epilogue.append(self._stored(name, index, value))

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


class RowPrinter(CudaLoopPrinter):
    """A nest whose rows are shared with others: buffers that the team keeps are arrays, numbers, or a row in shared memory."""

    team: ClassVar[RowPlan]
    root_of: ClassVar[Callable[[str], str]]
    offset_of: ClassVar[Callable[[str], int]]
    leaving: ClassVar[frozenset[str]]
    """Roots whose memory is read after the group."""
    whole: ClassVar[Nest]
    """The nest as it was printed for analysis."""

    def _held(self, name: str, index: Any) -> tuple[Held, str] | None:
        root = type(self).root_of(name)
        held = self.team.held.get(root)
        if held is None:
            return None
        own = held_name(held.root)
        if held.kept is not Kept.SHARED:
            return held, own if held.kept is Kept.NUMBER else f"{own}[at]"
        leading = loop_variables(len(self.whole.sizes))[: self.whole.outer]
        rest = sympy.expand((index + type(self).offset_of(name)).subs(dict.fromkeys(leading, 0)))
        return held, f"{own}[{self._index_text(rest)}]"

    def _loaded(self, name: str, index: Any) -> str:
        """Print the value of an element, wherever the team keeps it."""
        held = self._held(name, index)
        return super()._loaded(name, index) if held is None else held[1]

    def _stored(self, name: str, index: Any, value: str) -> str:
        """Print the assignment to an element: to what the team keeps, and to memory that is read later."""
        held = self._held(name, index)
        statement = super()._stored(name, index, value)
        alone = (together(self.whole) and self.whole.kind is NestKind.REDUCTION) or length(self.whole) == 1
        guard = "if (lead) " if alone else "if (active) " if self.team.team < WARP else ""
        if held is None:
            return guard + statement
        kept = f"{held[1]} = ytk::cast<{c_type(self._dtype_of(name))}>({value});"
        kept = f"{guard if held[0].kept is Kept.SHARED else ''}{kept}"
        leaves = held[0].root in self.leaving and not (held[0].kept is Kept.ARRAY and held[0].vector)
        return f"{kept} {guard}{statement}" if leaves else kept

    def scan(self, dtypes: Any, combine_fn: Callable[..., Any], values: Any) -> tuple[str, ...]:
        """Take the scan apart where the team shares its steps out."""
        if not together(self.whole):
            return super().scan(dtypes, combine_fn, values)
        types = tuple(c_type(dtype) for dtype in dtypes)
        left, right, out = ([f"{side}{k}" for k in range(len(types))] for side in ("left", "right", "out"))
        known, self._known = self._known, [{}]
        with self._block() as block:
            result = combine_fn(tuple(left), tuple(right))
        self._known = known
        result = tuple(result) if isinstance(result, tuple | list) else (result,)
        given = ", ".join(f"{t} {n}" for names in (left, right) for t, n in zip(types, names, strict=True))
        given += "".join(f", {t}& {n}" for t, n in zip(types, out, strict=True))
        text = " ".join([*block, *(f"{o} = {r};" for o, r in zip(out, result, strict=True))])
        self._nest.kind = NestKind.SCAN
        results = tuple(f"s{k}" for k in range(len(types)))
        fill = tuple(self._nest.body)
        self._nest.body.clear()
        self._known[-1].clear()
        self._nest.scan = ScanParts(types, tuple(values), fill, f"[]({given}) {{ {text} }}")
        return results


def held_name(root: str) -> str:
    """Give the name of what a team keeps of a buffer."""
    return f"held_{root}"


Relaid = Callable[[str, Any], Any]


def printer_type(operation: Any, *, short: bool, relaid: Relaid | None = None) -> type[CudaLoopPrinter]:
    """Give the printer of one computed buffer."""
    mutates = isinstance(operation.layout, inductor.ir.MutationLayoutSHOULDREMOVE)
    how = {"short": short, "scattering": mutates, "relaid": staticmethod(relaid) if relaid else None}
    return type("Printer", (CudaLoopPrinter,), how)


def print_nest(
    operation: Any,
    pointer_of: Callable[[str], str],
    dtype_of: Callable[[str], torch.dtype],
    *,
    short: bool,
    relaid: Relaid | None = None,
) -> Nest:
    """Print one computed buffer for a GPU; see :func:`ytk_gaia.generator.loop_printer.print_nest`."""
    printer = printer_type(operation, short=short, relaid=relaid)
    return loop_printer.print_nest(printer, operation, pointer_of, dtype_of)
