"""Prints a group of nests that share rows as the body of one device function. Pure text.

A team (some lanes of a warp, a warp, or a block) has a row. Position ``place`` of it belongs to one thread, in every nest to the same:
``(turn * team + lane) * vector + side``. Partial results are joined in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ytk_gaia.generator.cuda_printer import held_name
from ytk_gaia.generator.cuda_rows import UNROLLED, Held, Kept, RowPlan, length, positions, static, together
from ytk_gaia.generator.cuda_schedules import WARP, Printed, decode, join_lanes
from ytk_gaia.generator.index_printer import print_index
from ytk_gaia.generator.nest import Nest, NestKind, ScanParts, loop_variables
from ytk_gaia.generator.schedules import extent_text, product_text

_SERIAL_WARPS = 8
"""Parts of as many warps are joined one after the other by every thread; of more, by a warp."""


class RowText:
    """Prints one group.

    Args:
        plan: How it runs.
        nests: Printed with what the team keeps, in order.
        type_of: Root to C++ type of an element in a register.
        pointer_of: Root to C++ pointer.
        root_of: Buffer name to root.
        leaving: Roots whose memory is read after the group.
    """

    def __init__(
        self,
        plan: RowPlan,
        nests: Sequence[Nest],
        type_of: Callable[[str], str],
        pointer_of: Callable[[str], str],
        root_of: Callable[[str], str],
        leaving: set[str],
    ) -> None:
        self._plan, self._nests, self._root_of = plan, nests, root_of
        self._type_of, self._pointer_of, self._leaving = type_of, pointer_of, leaving
        self._shared: list[str] = []
        self._dirty: set[str] = set()
        """What threads have handed to one another, or read of one another, since the last barrier."""

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def printed(self) -> Printed:
        """Give the device function's body and how it is started."""
        plan = self._plan
        body: list[str] = []
        for number, nest in enumerate(self._nests):
            body += self._phase(number, nest)
        first = self._nests[0]
        rows = product_text(first.sizes[: first.outer])
        teams = plan.threads // plan.team
        if plan.by_block:
            lines = [
                *self._shared_rows(),
                "const I lane = threadIdx.x;",
                "[[maybe_unused]] const bool lead = lane == 0;",
                f"for (I row = blockIdx.x; row < {rows}; row += gridDim.x) {{",
                *body,
                "__syncthreads();" if self._shared or self._dirty else "",
                "}",
            ]
        elif plan.team == WARP:
            lines = [
                *self._shared_rows(),
                f"const I lane = threadIdx.x % {WARP};",
                "[[maybe_unused]] const bool lead = lane == 0;",
                f"for (I row = (I)blockIdx.x * {teams} + (I)threadIdx.x / {WARP}; row < {rows}; row += (I)gridDim.x * {teams}) {{",
                *body,
                "__syncwarp();" if self._shared or self._dirty else "",
                "}",
            ]
        elif plan.team == 1:
            lines = [
                "constexpr I lane = 0;",
                "[[maybe_unused]] constexpr bool lead = true, active = true;",
                f"for (I row = (I)blockIdx.x * {teams} + (I)threadIdx.x; row < {rows}; row += (I)gridDim.x * {teams}) {{",
                *body,
                "}",
            ]
        else:
            # All lanes of a warp stay together: what is beyond the last row does that row again, and keeps it to itself.
            lines = [
                f"const I lane = threadIdx.x % {plan.team};",
                f"for (I first = (I)blockIdx.x * {teams}; first < {rows}; first += (I)gridDim.x * {teams}) {{",
                f"const I mine = first + (I)threadIdx.x / {plan.team};",
                f"[[maybe_unused]] const bool active = mine < {rows}, lead = active && lane == 0;",
                f"const I row = active ? mine : (I)({rows}) - 1;",
                *body,
                "}",
            ]
        return Printed(lines, rows, teams, plan.threads)

    def _shared_rows(self) -> list[str]:
        teams = self._plan.threads // self._plan.team
        lines = list(self._shared)
        for held in self._plan.held.values():
            if held.kept is Kept.SHARED:
                name, c = held_name(held.root), self._type_of(held.root)
                if teams == 1:
                    lines.append(f"__shared__ {c} {name}[{held.length}];")
                else:
                    lines.append(f"__shared__ {c} {name}_all[{teams}][{held.length}];")
                    lines.append(f"{c}* const {name} = {name}_all[threadIdx.x / {self._plan.team}];")
        return lines

    # ---- one nest ----------------------------------------------------------------------------------------------------

    def _phase(self, number: int, nest: Nest) -> list[str]:
        reads = {self._root_of(name) for name in nest.reads}
        writes = {self._root_of(name) for name in nest.writes}
        lines = self._declared(number)
        handed = (reads | writes) & self._plan.crossing
        if handed & self._dirty or (nest.kind is NestKind.SORT and "pairs" in self._dirty):
            if self._plan.team > 1:
                lines.append("__syncthreads();" if self._plan.by_block else "__syncwarp();")
            self._dirty.clear()
        self._dirty |= handed
        lines += ["{", *self._leading(nest)]
        for held in self._plan.held.values():
            if held.loaded and held.root in reads and self._first_use(held.root) == number:
                lines += self._moved(held, "ytk::load_vector")
        lines += self._run(number, nest)
        for root in sorted(writes):
            held_ = self._plan.held.get(root)
            if held_ and held_.kept is Kept.ARRAY and held_.vector and root in self._leaving:
                lines += self._moved(held_, "ytk::store_vector", length(nest))
        return [*lines, "}"]

    def _first_use(self, root: str) -> int:
        return next(
            k for k, n in enumerate(self._nests) if root in {self._root_of(name) for name in n.reads | n.writes}
        )

    def _declared(self, number: int) -> list[str]:
        """Declare what is kept in registers, ahead of the nest that first has it."""
        plan, lines = self._plan, []
        for root, held in plan.held.items():
            if held.kept is not Kept.SHARED and self._first_use(root) == number:
                c, name = self._type_of(root), held_name(root)
                room = f"[{self._turns(held.length) * plan.vector}]" if held.kept is Kept.ARRAY else ""
                lines.append(f"{c} {name}{room}; (void){name};")
        return lines

    def _leading(self, nest: Nest) -> list[str]:
        variables = [f"i{k}" for k in range(nest.outer)]
        own = {v for v, _ in positions(nest)}
        single = [
            v for v, n in zip(loop_variables(len(nest.sizes)), nest.sizes, strict=True) if n == 1 and v not in own
        ]
        zero = [f"const I {v} = 0; (void){v};" for v in single if str(v) not in variables]
        return [*(decode(variables, nest.sizes[: nest.outer], "row") if variables else []), *zero]

    def _turns(self, count: int) -> int:
        return -(-count // (self._plan.team * self._plan.vector))

    def _moved(self, held: Held, function: str, count: int = 0) -> list[str]:
        """Print the way of an array between registers and memory."""
        plan, access, count = self._plan, held.access, count or held.length
        assert access is not None  # arrays have one
        vector = plan.vector if held.vector else 1
        name, pointer, turns = held_name(held.root), self._pointer_of(held.root), self._turns(count)
        base = print_index(access.base + access.first)
        place = "place" if access.factor == 1 else f"{access.factor} * place"
        guard = "active && " if function.endswith("store_vector") and plan.team < WARP else ""
        lines = ["#pragma unroll", f"for (int turn = 0; turn < {turns}; ++turn) {{"]
        if vector == plan.vector:
            lines += [
                f"const I place = (turn * {plan.team} + lane) * {plan.vector};",
                f"if ({guard}place < {count}) {function}<{vector}>({name} + turn * {plan.vector}, {pointer}, (I)({base} + {place}));",
            ]
        else:
            lines += [
                "#pragma unroll",
                f"for (int side = 0; side < {plan.vector}; ++side) {{",
                f"const I place = (turn * {plan.team} + lane) * {plan.vector} + side;",
                f"if ({guard}place < {count}) {function}<1>({name} + turn * {plan.vector} + side, {pointer}, (I)({base} + {place}));",
                "}",
            ]
        return [*lines, "}"]

    def _positions(self, nest: Nest, inner: Sequence[str]) -> list[str]:
        """Run ``inner`` at every position of this thread."""
        own = positions(nest)
        names, sizes = [str(v) for v, _ in own], [n for _, n in own]
        count, fixed = product_text(sizes), static(nest)
        if fixed and length(nest) == 1:
            zero = [f"const I {name} = 0; (void){name};" for name in names]
            return ["{", "const int at = 0; (void)at;", *zero, *inner, "}"]
        head = self._turn_loops(nest)
        digits = decode(names, sizes, "place")
        inside = "{" if self._exact(length(nest)) and fixed else f"if (place < {count}) {{"
        return [*head, inside, *digits, *inner, "}", "}", "}"]

    def _exact(self, count: int) -> bool:
        """Whether every thread has as many positions: none is beyond the end."""
        return count % (self._plan.team * self._plan.vector) == 0

    def _turn_loops(self, nest: Nest) -> list[str]:
        """Open the loops over turns and sides: two braces."""
        plan, unroll = self._plan, ["#pragma unroll"] if self._plan.unrolled else []
        if static(nest):
            turns = str(self._turns(length(nest)))
            unroll = unroll if int(turns) <= UNROLLED else []
        else:
            sizes = [n for _, n in positions(nest)]
            turns = f"({product_text(sizes)} + {plan.team * plan.vector - 1}) / {plan.team * plan.vector}"
        counter = "int" if static(nest) else "I"
        return [
            *unroll,
            f"for ({counter} turn = 0; turn < {turns}; ++turn) {{",
            *unroll,
            f"for (int side = 0; side < {plan.vector}; ++side) {{",
            f"const int at = (int)turn * {plan.vector} + side; (void)at;",
            f"const I place = (turn * {plan.team} + lane) * {plan.vector} + side;",
        ]

    def _run(self, number: int, nest: Nest) -> list[str]:
        state = [f"{v.c_type} {v.name} = {v.initial};" for v in nest.state]
        serial = [f"for (I r{k} = 0; r{k} < {extent_text(n)}; ++r{k}) {{" for k, n in enumerate(nest.reduced)]
        if nest.kind is NestKind.SORT:
            return self._sort(nest)
        if nest.kind is NestKind.SCAN and nest.scan is not None:
            return self._scan(number, nest, nest.scan)
        if nest.kind is NestKind.REDUCTION and together(nest):
            return [*state, *self._positions(nest, nest.body), *self._join(number, nest), *nest.epilogue]
        if nest.reduced:
            return self._positions(nest, [*state, *serial, *nest.body, "}" * len(serial), *nest.epilogue])
        return self._positions(nest, nest.body)

    # ---- what a team does together -----------------------------------------------------------------------------------

    def _lanes_joined(self, nest: Nest, lanes: int) -> list[str]:
        """Join the state of the first ``lanes`` lanes in the first, and tell it to the others of its team."""
        told = [
            f"{v.name} = ytk::shuffle_from({v.name}, threadIdx.x % {WARP} / {lanes} * {lanes});" for v in nest.state
        ]
        if lanes == 1:
            return []
        return ["#pragma unroll", *join_lanes(nest, lanes), *told]

    def _join(self, number: int, nest: Nest) -> list[str]:
        """Join the threads' states: afterwards every thread of the team has the whole."""
        plan = self._plan
        lines = self._lanes_joined(nest, min(WARP, plan.team))
        if not plan.by_block:
            return lines
        warps = plan.team // WARP
        parts = {v.name: f"parts{number}_{v.name}" for v in nest.state}
        self._shared += [f"__shared__ {v.c_type} {parts[v.name]}[{warps}];" for v in nest.state]
        lines += [
            f"if (lane % {WARP} == 0) {{",
            *(f"{part}[lane / {WARP}] = {name};" for name, part in parts.items()),
            "}",
            "__syncthreads();",
        ]
        if warps <= _SERIAL_WARPS:
            lines += [f"{name} = {part}[0];" for name, part in parts.items()]
            lines += ["#pragma unroll", f"for (int part = 1; part < {warps}; ++part) {{"]
            lines += [f"const {v.c_type} other_{v.name} = {parts[v.name]}[part];" for v in nest.state]
            return [*lines, *nest.joins, "}"]
        for v in nest.state:
            lines.append(
                f"{v.name} = lane % {WARP} < {warps} ? {parts[v.name]}[lane % {WARP}] : ({v.c_type})({v.initial});"
            )
        return [*lines, *self._lanes_joined(nest, WARP)]

    def _sort(self, nest: Nest) -> list[str]:
        keys, plan = nest.sort, self._plan
        assert keys is not None  # a sort has keys
        count, teams = length(nest), plan.threads // plan.team
        self._dirty.add("pairs")
        if teams == 1:
            self._shared.append(f"__shared__ {keys.pair_type} sorted_{nest.buffer}[{count}];")
        else:
            self._shared.append(f"__shared__ {keys.pair_type} sorted_{nest.buffer}_all[{teams}][{count}];")
        place = f"sorted_{nest.buffer}" if teams == 1 else f"sorted_{nest.buffer}_all[threadIdx.x / {plan.team}]"
        down = "true" if keys.descending else "false"
        if plan.by_block:
            call = f"ytk::sort_block<{down}>({keys.buffer}, {count});"
        else:
            call = f"ytk::sort_warp<{down}>({keys.buffer}, {count});"
        return [
            f"{keys.pair_type}* const {keys.buffer} = {place};",
            *self._positions(nest, keys.fill),
            call,
            *self._positions(nest, nest.body),
        ]

    def _scan(self, number: int, nest: Nest, parts: ScanParts) -> list[str]:
        """Scan in turns of the team: sides in a thread, lanes in a warp, warps in a block; what was before is carried on."""
        plan, own = self._plan, positions(nest)
        names, sizes = [str(v) for v, _ in own], [n for _, n in own]
        digits, inside = decode(names, sizes, "place"), f"place < {product_text(sizes)}"
        each = range(len(parts.types))

        def words(prefix: str) -> str:
            return ", ".join(f"{prefix}{k}" for k in each)

        def joined(left: str, right: str, into: str) -> str:
            return f"join({words(left)}, {words(right)}, {words(into)});"

        def taken(into: str, out_of: str) -> str:
            return " ".join(f"{into}{k} = {out_of}{k};" for k in each)

        loops = self._turn_loops(nest)
        split = next(k for k, line in enumerate(loops) if "int side" in line)
        split -= loops[split - 1].startswith("#")
        turns, sides = loops[:split], loops[split:]
        lanes = min(WARP, plan.team)
        lines = [f"const auto join = {parts.join};"]
        lines += [f"{t} carry{k} = 0; (void)carry{k};" for k, t in enumerate(parts.types)]
        lines += ["bool carried = false;", *turns]
        lines += [f"{t} side{k}[{plan.vector}]; {t} run{k} = 0;" for k, t in enumerate(parts.types)]
        lines += ["bool some = false;", *sides, f"if ({inside}) {{", *digits, *parts.fill]
        lines += [f"const {t} own{k} = {v};" for k, (t, v) in enumerate(zip(parts.types, parts.values, strict=True))]
        lines += [f"if (some) {{ {joined('run', 'own', 'run')} }} else {{ {taken('run', 'own')} some = true; }}"]
        lines += [*(f"side{k}[side] = run{k};" for k in each), "}", "}"]
        # Lanes: each gets what its team's lanes before it have, in a form with all before it joined.
        if lanes > 1:
            lines += [f"for (int by = 1; by < {lanes}; by *= 2) {{", "const bool other = ytk::shuffle_up(some, by);"]
            lines += [f"const {t} other{k} = ytk::shuffle_up(run{k}, by);" for k, t in enumerate(parts.types)]
            lines += [f"if (lane % {lanes} >= by && other) {{"]
            whole = f"else {{ {taken('run', 'other')} some = true; }}"
            lines += [f"if (some) {{ {joined('other', 'run', 'run')} }} {whole}", "}", "}"]
            lines += [f"const {t} before{k} = ytk::shuffle_up(run{k}, 1);" for k, t in enumerate(parts.types)]
            # A shuffle is for all lanes: it may not stand behind a condition.
            lines += ["const bool some_before = ytk::shuffle_up(some, 1);"]
            lines += [f"const bool any_before = some_before && lane % {lanes} > 0;"]
        lines += [f"{t} start{k} = carry{k};" for k, t in enumerate(parts.types)] + ["bool started = carried;"]

        def onto(base: str, flag: str, part: str, condition: str) -> str:
            first = f"{taken(base, part)} {flag} = true;"
            return f"if ({condition}) {{ if ({flag}) {{ {joined(base, part, base)} }} else {{ {first} }} }}"

        if plan.by_block:
            warps = plan.team // WARP
            self._shared += [f"__shared__ {t} totals{number}_{k}[{warps}];" for k, t in enumerate(parts.types)]
            self._shared.append(f"__shared__ bool seen{number}[{warps}];")
            lines += [
                f"if (lane % {WARP} == {WARP - 1}) {{",
                *(f"totals{number}_{k}[lane / {WARP}] = run{k};" for k in each),
            ]
            lines += [f"seen{number}[lane / {WARP}] = some;", "}", "__syncthreads();"]
            lines += [f"for (int part = 0; part < {warps}; ++part) {{", f"const bool there = seen{number}[part];"]
            lines += [f"const {t} total{k} = totals{number}_{k}[part];" for k, t in enumerate(parts.types)]
            lines += [onto("start", "started", "total", f"there && part < lane / {WARP}")]
            lines += [onto("carry", "carried", "total", "there"), "}", "__syncthreads();"]
        elif lanes == 1:
            lines += ["const bool there = some;", *(f"const {t} total{k} = run{k};" for k, t in enumerate(parts.types))]
            lines += [onto("carry", "carried", "total", "there")]
        else:
            last = f"threadIdx.x % {WARP} / {lanes} * {lanes} + {lanes - 1}"
            lines += [f"const bool there = ytk::shuffle_from(some, {last});"]
            lines += [f"const {t} total{k} = ytk::shuffle_from(run{k}, {last});" for k, t in enumerate(parts.types)]
            lines += [onto("carry", "carried", "total", "there")]
        lines += [onto("start", "started", "before", "any_before")] if lanes > 1 else []
        lines += [*sides, f"if ({inside}) {{", *digits]
        lines += [f"{t} s{k} = side{k}[side];" for k, t in enumerate(parts.types)]
        lines += [f"if (started) {{ {joined('start', 's', 's')} }}", *nest.body, "}", "}", "}"]
        return lines
