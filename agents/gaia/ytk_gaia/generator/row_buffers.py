"""Buffers that only one row of a group of nests needs at a time: each thread has one row of them, which stays in its cache."""

from __future__ import annotations

from collections.abc import Sequence

from ytk_gaia.generator.index_printer import STORAGE_TYPE, c_type
from ytk_gaia.generator.memory_plan import Plan, aligned, itemsize
from ytk_gaia.generator.row_fusion import Group
from ytk_gaia.generator.schedules import extent_text

_MAX_ROW_BYTES = 4 << 20
"""What a thread keeps at most; beyond that a buffer stays whole in the workspace."""


class RowBuffers:
    """Which buffers are kept by rows, and where.

    Args:
        plan: Sizes and aliases.
        groups: All nests, in order.
        kept: Roots of the kernel's results: these are whole.

    Attributes:
        roots: Buffers that exist as one row per thread.
        bytes: Of all rows of the largest group, per thread.
    """

    def __init__(self, plan: Plan, groups: Sequence[Group], kept: set[str]) -> None:
        self._plan = plan
        self._places: dict[str, tuple[int, int]] = {}
        self.bytes = 0
        users: dict[str, set[int]] = {}
        for number, group in enumerate(groups):
            for nest in group.nests:
                for name in (*nest.reads, *nest.writes):
                    users.setdefault(plan.root(name), set()).add(number)
        for group in groups:
            end = 0
            for root, stride in group.strides.items():
                size = aligned(stride * itemsize(plan.dtypes[root])) if root in plan.storage else 0
                if size and root not in kept and len(users[root]) == 1 and end + size <= _MAX_ROW_BYTES:
                    self._places[root] = (end, stride)
                    end += size
            self.bytes = max(self.bytes, end)
        self.roots = set(self._places)

    def declarations(self, group: Group, scratch: str) -> list[str]:
        """Print the pointers that a group's row buffers have in iteration ``shared``.

        Each is shifted back by the rows before, so that the index expressions of the whole buffer hold.

        Args:
            group: One of the groups.
            scratch: C++ pointer to the running thread's memory.
        """
        plan, lines = self._plan, []
        own = {root: self._places[root] for root in group.strides if root in self._places}
        if not own:
            return []
        lines.append(f"char* const mine = {scratch};")
        for root, (place, stride) in own.items():
            size = itemsize(plan.dtypes[root])
            names = [root, *(view for view in plan.views if plan.root(view) == root)]
            for name in names:
                c = c_type(plan.dtypes[name], STORAGE_TYPE)
                start = f"(uintptr_t)(mine + {place}) - (uintptr_t)(shared * {stride * size})"
                offset = f" + {extent_text(plan.offset(name))}" if name != root else ""
                pointer = plan.pointers[name]
                lines.append(f"{c}* const {pointer} = ({c}*)({start}){offset}; (void){pointer};")
        return lines
