"""What the kernels of a candidate cost on paper, at the captured shape: the order of candidates where no GPU is there to measure them.

A launch, and the longer of two: the time that memory takes (bytes in sectors of 32: neighbouring threads that read elements apart pay
for what lies between; at the rate that as many threads keep going, up to the memory's own), and the time that the units take which load,
whatever the caches hold: a product in plain loops reads its operands anew for every element and pays there. Figures are of an
Orin-sized GPU; they order candidates and promise no time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy

from ytk_gaia.generator.cuda_groups import Fused, Total
from ytk_gaia.generator.cuda_rows import length, positions
from ytk_gaia.generator.cuda_schedules import WARP, CudaSchedule, Rows
from ytk_gaia.generator.cuda_totals import THREADS, parts_of, scratch_bytes
from ytk_gaia.generator.cuda_transposes import Tiled
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables, reduction_variables

LAUNCH_US = 4.0
BYTES_PER_US = 200_000.0
"""Of the whole memory: 200 GB/s."""
THREAD_BYTES_PER_US = 13.0
"""That one thread keeps going: 8 bytes on their way, for 0.6 us (Little's law)."""
LOADED_BYTES_PER_US = 1_300_000.0
"""That all loading units together hand over: 16 multiprocessors, 64 bytes a cycle, 1.3 GHz."""
_MOST_WASTE = 8
"""A sector of 32 bytes for 4."""
_UNKNOWN_WASTE = 4
_AT_ONCE = 4


@dataclass(frozen=True)
class PaperKernel:
    """One kernel.

    Attributes:
        sectors: Bytes of memory that it moves, whole sectors.
        threads: That share the work.
        loaded: Bytes that its threads ask for, those that a cache holds included; 0: each once, so that memory decides.
    """

    sectors: int
    threads: int
    loaded: int = 0

    @property
    def us(self) -> float:
        """Microseconds on paper."""
        memory = self.sectors / min(BYTES_PER_US, max(1, self.threads) * THREAD_BYTES_PER_US)
        return LAUNCH_US + max(memory, self.loaded / LOADED_BYTES_PER_US)


def moved_bytes(
    nest: Nest,
    neighbours: Any,
    itemsize_of: Callable[[str], int],
    span_of: Callable[[str], int | None],
    root_of: Callable[[str], str] = str,
) -> dict[str, int]:
    """Give the bytes that a nest moves per buffer, each element once.

    Args:
        nest: With plain extents (of dynamic ones the captured).
        neighbours: Loop variable that differs between neighbouring threads; None: none does.
        itemsize_of: Buffer to the bytes of one element.
        span_of: Buffer to its number of elements, None: not known.
        root_of: Buffer to the one that owns its memory.
    """
    sizes = dict(zip(loop_variables(len(nest.sizes)), nest.sizes, strict=True))
    sizes |= dict(zip(reduction_variables(len(nest.reduced)), nest.reduced, strict=True))
    most: dict[str, int] = {}
    for buffer, index in (*nest.loads, *nest.stores):
        name = root_of(buffer)
        found = sympy.sympify(index)
        named = [v for v in found.free_symbols if v in sizes]
        elements = prod(int(sizes[v]) for v in named)
        if len(named) < len(found.free_symbols):
            elements = prod(int(n) for n in sizes.values())
        span = span_of(name)
        elements = min(elements, span) if span is not None else elements
        most[name] = max(most.get(name, 0), elements * itemsize_of(name) * _waste(found, neighbours, len(named)))
    return most


def _waste(index: Any, neighbours: Any, named: int) -> int:
    """Give how many times the bytes that a load wants it makes the memory move."""
    if neighbours is None or neighbours not in index.free_symbols:
        return 1 if named == len(index.free_symbols) else _UNKNOWN_WASTE
    stride = sympy.expand(index).coeff(neighbours)
    if not stride.is_Integer or stride == 0:
        return _UNKNOWN_WASTE
    return min(_MOST_WASTE, abs(int(stride)))


class Paper:
    """Adds up the kernels of one candidate.

    Args:
        schedule: How nests that share nothing are run.
        itemsize_of: Buffer to the bytes of one element.
        span_of: Buffer to its number of elements, None: not known.
        root_of: Buffer to the one that owns its memory.
    """

    def __init__(
        self,
        schedule: CudaSchedule,
        itemsize_of: Callable[[str], int],
        span_of: Callable[[str], int | None],
        root_of: Callable[[str], str],
    ) -> None:
        self._schedule, self._itemsize_of, self._span_of, self._root_of = schedule, itemsize_of, span_of, root_of

    def _moved(self, nest: Nest, neighbours: Any) -> dict[str, int]:
        return moved_bytes(nest, neighbours, self._itemsize_of, self._span_of, self._root_of)

    def kernels(self, steps: Sequence[Nest | Fused | Total | Tiled]) -> list[PaperKernel]:
        """Give the kernels of what an emitter has grouped."""
        found = []
        for step in steps:
            if isinstance(step, Fused):
                found.append(self._fused(step))
            elif isinstance(step, Total):
                threads = parts_of(step.nest) * prod(int(n) for n in step.nest.sizes) * THREADS
                moved = sum(self._moved(step.nest, _last(step.nest, reduced=True)).values())
                found += [PaperKernel(moved, threads), PaperKernel(scratch_bytes(step.nest), WARP)]
            elif isinstance(step, Tiled):
                moved = sum(self._moved(step.nest, None).values())
                found.append(PaperKernel(moved, prod(int(n) for n in step.nest.sizes)))
            else:
                found.append(self._alone(step))
        return found

    def _fused(self, fused: Fused) -> PaperKernel:
        plan, once, again, loaded, at_hand = fused.plan, dict[str, int](), 0, 0, set(fused.inside)
        for nest in plan.nests:
            rows = loop_variables(nest.outer)
            own = [v for v, n in positions(nest) if int(n) != 1]
            neighbours = (rows or [None])[-1] if plan.team == 1 else (own or [None])[-1]
            loaded += self._loaded(nest, at_hand)
            # From the second time on a row that is kept comes from registers.
            at_hand |= plan.held.keys() & {self._root_of(buffer) for buffer, _ in (*nest.loads, *nest.stores)}
            for root, size in self._moved(nest, neighbours).items():
                if root in fused.inside:
                    continue
                if root in plan.held:
                    once[root] = max(once.get(root, 0), size)
                else:
                    again += size
        first = plan.nests[0]
        threads = prod(int(n) for n in first.sizes[: first.outer]) * plan.team
        # Loads of an array are all on their way at once.
        each = -(-max(map(length, plan.nests)) // plan.team)
        at_once = min(_AT_ONCE, each) if plan.unrolled else 1
        return PaperKernel(sum(once.values()) + again, threads * at_once, loaded)

    def _alone(self, nest: Nest) -> PaperKernel:
        results, each = prod(int(n) for n in nest.sizes), prod(int(n) for n in nest.reduced)
        if type(nest) is not Nest:  # a template: it moves everything once, by whole blocks
            roots = {self._root_of(name) for name in nest.reads | nest.writes}
            moved = sum((self._span_of(root) or 0) * self._itemsize_of(root) for root in roots)
            return PaperKernel(moved, max(1, results) * WARP)
        shared = nest.kind is NestKind.REDUCTION and each >= WARP and self._schedule.rows is not Rows.THREAD
        shared = shared or nest.kind is NestKind.SORT
        threads = results
        if shared:
            threads *= (
                WARP if self._schedule.rows is Rows.WARP and nest.kind is not NestKind.SORT else self._schedule.threads
            )
        return PaperKernel(sum(self._moved(nest, _last(nest, reduced=shared)).values()), threads, self._loaded(nest))

    def _loaded(self, nest: Nest, at_hand: Container[str] = ()) -> int:
        """Give the bytes that the loads of a nest ask for, one at each step; roots ``at_hand`` are in registers."""
        steps = prod(int(n) for n in (*nest.sizes, *nest.reduced))
        roots = [self._root_of(buffer) for buffer, _ in nest.loads]
        return steps * sum(self._itemsize_of(root) for root in roots if root not in at_hand)


def _last(nest: Nest, *, reduced: bool) -> Any:
    """Give the loop variable that runs fastest among the outputs, or among the reduced."""
    variables = reduction_variables(len(nest.reduced)) if reduced else loop_variables(len(nest.sizes))
    sizes = nest.reduced if reduced else nest.sizes
    return next((v for v, n in reversed(list(zip(variables, sizes, strict=True))) if int(n) != 1), None)
