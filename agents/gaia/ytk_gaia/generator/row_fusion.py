"""Row fusion: nests that only pass rows to one another run in turn inside one loop over the rows.

A layer norm is two reductions and a pointwise loop; an attention is two products, a softmax and what stands round them. Nest by
nest, each goes through the whole tensor, and starts a thread team. Here every row (or head, or image) goes through all of
them while it is in the cache, in one parallel loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy

from ytk_gaia.generator.loop_shape import row_offset
from ytk_gaia.generator.nest import Nest, NestKind, loop_variables, reduction_variables

_MIN_ROWS = 4
_MIN_WORK = 8
"""Iterations that a nest keeps inside: with fewer there is nothing for vector lanes to run along."""
_FUSED = frozenset({NestKind.POINTWISE, NestKind.REDUCTION, NestKind.SCAN, NestKind.SORT})


@dataclass(frozen=True)
class Group:
    """Nests that run one after the other in each iteration of shared outer loops; ``rows`` 1: a nest by itself.

    Attributes:
        rows: Iterations of the shared loops.
        nests: With their own loops inside.
        strides: Elements between the rows of each buffer that a nest of the group writes.
    """

    rows: int
    nests: tuple[Nest, ...]
    strides: dict[str, int] = field(default_factory=dict)


def _row_stride(nest: Nest, index: Any, span: int, rows: int) -> int | None:
    """Give the elements between rows of a buffer that ``nest`` accesses at ``index``, each within its own row."""
    variables = loop_variables(len(nest.sizes))
    leading = [(v, int(n)) for v, n in zip(variables[: nest.outer], nest.sizes, strict=False)]
    ranges = dict(zip(variables[nest.outer :], nest.sizes[nest.outer :], strict=True))
    ranges.update(zip(reduction_variables(len(nest.reduced)), nest.reduced, strict=True))
    found = row_offset(index, leading, ranges)
    if found is None:
        return None
    stride, low, high = found
    return stride if low >= 0 and high < stride and stride * (rows - 1) < span else None


class Fuser:
    """Finds runs of nests that can share their outer loops.

    Args:
        printed: Prints nest number ``k`` with its outer loops cut at a number of iterations, or gives None.
        root_of: Buffer name to the buffer that owns its memory.
        span_of: Root to its number of elements, None where it is not static.
        offset_of: Buffer name to where a view starts in its root.
        min_rows: Iterations that are worth sharing.
        min_work: Iterations that a nest keeps inside at least.
    """

    def __init__(
        self,
        printed: Callable[[int, int], Nest | None],
        root_of: Callable[[str], str],
        span_of: Callable[[str], int | None],
        offset_of: Callable[[str], int],
        *,
        min_rows: int = _MIN_ROWS,
        min_work: int = _MIN_WORK,
    ) -> None:
        self._min_rows, self._min_work = min_rows, min_work
        self._printed, self._root_of, self._span_of, self._offset_of = printed, root_of, span_of, offset_of
        self._seen: dict[tuple[int, int], Nest | None] = {}

    def _cut(self, number: int, rows: int) -> Nest | None:
        key = (number, rows)
        if key not in self._seen:
            self._seen[key] = self._printed(number, rows)
        return self._seen[key]

    def _wide(self, nest: Nest) -> bool:
        return prod(int(n) for n in (*nest.sizes[nest.outer :], *nest.reduced)) >= self._min_work

    def _strides(self, nests: Sequence[Nest], rows: int) -> dict[str, int] | None:
        """Give the elements between rows of what the nests write; None where a row touches another one's."""
        written = {self._root_of(name) for nest in nests for name, _ in nest.stores}
        strides: dict[str, int] = {}
        for nest in nests:
            for name, index in (*nest.stores, *nest.loads):
                root = self._root_of(name)
                if root not in written:
                    continue
                span = self._span_of(root)
                stride = None
                if span is not None:
                    place = sympy.sympify(index) + self._offset_of(name)
                    stride = _row_stride(nest, place, span, rows)
                if stride is None or strides.setdefault(root, stride) != stride:
                    return None
        return strides

    def _run(self, start: int, count: int, rows: int) -> tuple[Nest, ...]:
        """Give the longest run from ``start`` that shares ``rows`` iterations."""
        run: list[Nest] = []
        for number in range(start, count):
            nest = self._cut(number, rows)
            if (
                nest is None
                or nest.kind not in _FUSED
                or not self._wide(nest)
                or self._strides([*run, nest], rows) is None
            ):
                break
            run.append(nest)
        return tuple(run)

    def groups(self, nests: Sequence[Nest]) -> list[Group]:
        """Part nests into runs, the longest first come; among equally long ones that with most iterations outside.

        Args:
            nests: All, in order of execution, with nothing outside.
        """
        found, start = [], 0
        while start < len(nests):
            best = Group(1, (nests[start],))
            for rows in sorted(_outer_counts(nests[start:], self._min_rows), reverse=True):
                run = self._run(start, len(nests), rows)
                if len(run) > 1 and len(run) > len(best.nests):
                    best = Group(rows, run, self._strides(run, rows) or {})
            found.append(best)
            start += len(best.nests)
        return found


def _outer_counts(nests: Sequence[Nest], least: int) -> set[int]:
    """Give the numbers of iterations that the first loops of any nest have together."""
    found = set()
    for nest in nests:
        done = 1
        for size in nest.sizes:
            if not sympy.sympify(size).is_Integer:
                break
            done *= int(size)
            if done >= least:
                found.add(done)
    return found
