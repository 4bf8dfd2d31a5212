"""Tiles of matrix products on GPUs: which shapes there are, which fit a product, and the text of its kernel. Pure text.

The tile loops are in ``cuda/ytk_gemm.h``; here the operands, the epilogue and the order of tiles are printed round them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ytk_core.cuda.cubin import KernelUse
from ytk_core.cuda.occupancy import LIMITS, occupancy
from ytk_gaia.generator.cuda_gemm import Loop, Operand, Product, extent
from ytk_gaia.generator.cuda_schedules import Printed
from ytk_gaia.generator.schedules import extent_text, product_text

MAX_TILES = 1 << 20
_STATIC_SHARED = 48 << 10
"""What a kernel may declare; more has to be asked for at the launch."""
_OTHER_REGISTERS = 48
"""Addresses, loop counters, and what is on its way to shared memory, on top of sums and fragments."""


@dataclass(frozen=True)
class GemmTile:
    """One way to cut a product.

    Attributes:
        name: Word for candidate ids.
        rows: Of the output, per block.
        columns: Likewise.
        depth: Of a step, with floats.
        per_thread: Rows and columns of one thread, with floats.
        half_depth: Of a step, on tensor cores.
        warps: Along rows and columns, on tensor cores.
    """

    name: str
    rows: int
    columns: int
    depth: int
    per_thread: tuple[int, int]
    half_depth: int
    warps: tuple[int, int]

    @property
    def threads(self) -> int:
        """Per block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def shared_bytes(self) -> int:
        """Of the larger of both forms, as ``ytk_gemm.h`` declares them; at most."""
        floats = 2 * self.depth * (self.rows + self.columns + 8) * 4
        halves = (
            2 * 2 * sum(max(n * (self.half_depth + 8), self.half_depth * (n + 8)) for n in (self.rows, self.columns))
        )
        return max(floats, halves)

    @property
    def registers(self) -> int:
        """Estimated, of the larger of both forms: sums, and the fragments that they are made of."""
        tm, tn = self.per_thread
        pieces_m, pieces_n = self.rows // self.warps[0] // 16, self.columns // self.warps[1] // 16
        floats = tm * tn + tm + tn + self.depth * (self.rows + self.columns) // self.threads
        halves = pieces_m * pieces_n * 8 + 4 * (pieces_m + pieces_n)
        return max(floats, halves) + _OTHER_REGISTERS


TILES: tuple[GemmTile, ...] = (
    GemmTile("t128x128", 128, 128, 16, (8, 8), 32, (2, 4)),
    GemmTile("t128x64", 128, 64, 16, (8, 4), 32, (4, 2)),
    GemmTile("t64x64", 64, 64, 16, (8, 4), 32, (2, 2)),
    GemmTile("t32x64", 32, 64, 16, (4, 4), 32, (2, 2)),
    GemmTile("t32x32", 32, 32, 16, (4, 4), 32, (2, 1)),
)
"""Largest first."""


def launchable(tile: GemmTile, sm: int) -> bool:
    """Whether a multiprocessor takes a block at all; a GPU that we have no figures of is taken to."""
    use = KernelUse(registers=min(tile.registers, 255), stack_bytes=0, shared_bytes=tile.shared_bytes)
    if tile.shared_bytes > _STATIC_SHARED or tile.registers > 255:
        return False
    return sm not in LIMITS or bool(occupancy(sm, use, tile.threads))


def fitting(product: Product, tile: GemmTile) -> GemmTile:
    """Give the tile, or the first smaller one that is not mostly beyond the edge of the product."""
    rows, columns = extent(product.rows), extent(product.columns)
    later = TILES[TILES.index(tile) :]
    return next((t for t in later if t.rows < 2 * rows and t.columns < 2 * columns), later[-1])


# ---- text ------------------------------------------------------------------------------------------------------------


def decode(loops: Sequence[Loop], value: str) -> list[str]:
    """Print the loop variables that ``value`` numbers the iterations of, the last one running fastest."""
    lines: list[str] = []
    rest = value
    for position in reversed(range(len(loops))):
        loop = loops[position]
        size = extent_text(loop.size)
        lines.append(f"const I {loop.name} = {f'({rest}) % {size}' if position else rest}; (void){loop.name};")
        rest = f"({rest}) / {size}"
    return lines


def product_of(loops: Iterable[Loop]) -> str:
    """Give the C++ text of the number of iterations."""
    return product_text([loop.size for loop in loops])


def flag(value: bool) -> str:
    """Print a bool."""
    return "true" if value else "false"


def print_operand(name: str, operand: Operand, outer: Sequence[Loop], depth: Sequence[Loop]) -> list[str]:
    """Print an operand as ``name``: a function of its row and of the step along the reduced loops."""
    loops = [*decode(outer, "row"), *decode(depth, "k")]
    vector, address = "false", ["return (const float*)nullptr;"]
    if operand.vector and operand.place is not None:
        pointer, index = operand.place
        vector, address = f"ytk::moves_together<decltype({pointer})>", [*loops, f"return &{pointer}[{index}];"]
    return [
        f"const auto {name} = ytk::make_operand<{flag(operand.along_k)}, {vector}>([&](I row, I k) {{",
        "(void)row; (void)k;",
        *loops,
        *operand.statements,
        f"return {operand.value};",
        "}, [&](I row, I k) {",
        "(void)row; (void)k;",
        *address,
        "});",
    ]


def print_links(product: Product) -> list[str]:
    """Print what is done with each element after its sum, from links that speak of the loops of the one before."""
    lines, closing = [product.store] if product.store else [], 0
    for level, link in enumerate(product.links):
        lines += ["{", f"const I at{level} = {link.place};", "{"]
        closing += 2
        shown = {loop.name for loop, _ in link.loops}
        for position, (loop, stride) in enumerate(link.loops):
            value = f"at{level}" if stride == 1 else f"at{level} / {stride}"
            lines.append(f"const I {loop.name} = {f'{value} % {extent_text(loop.size)}' if position else value};")
        used = " ".join(link.statements) + " ".join(later.place for later in product.links)
        lines += [f"const I i{k} = 0; (void)i{k};" for k in range(10) if f"i{k}" not in shown and f"i{k}" in used]
        lines += ["".join(f"(void){name};" for name in sorted(shown)), *link.statements]
    return [*lines, "}" * closing]


def print_product(product: Product, tile: GemmTile) -> Printed:
    """Print a product as the body of a device function, one tile of the output per block and turn."""
    fitted = fitting(product, tile)
    floats = f"ytk::fma_tile<{fitted.rows}, {fitted.columns}, {fitted.depth}, {fitted.per_thread[0]}, {fitted.per_thread[1]}>"
    halves = (
        f"ytk::mma_tile<{fitted.rows}, {fitted.columns}, {fitted.half_depth}, {fitted.warps[0]}, {fitted.warps[1]}>"
    )
    read = ", ".join(f"decltype({p})" for p in sorted(product.a.pointers | product.b.pointers))
    rows, columns, depth = (product_of(loops) for loops in (product.rows, product.columns, product.depth))
    row_tiles, column_tiles = (
        f"(({rows} + {fitted.rows - 1}) / {fitted.rows})",
        f"(({columns} + {fitted.columns - 1}) / {fitted.columns})",
    )
    count = f"{product_of(product.batch)} * {row_tiles} * {column_tiles}"
    lines = [
        f"const I rows = {rows}, columns = {columns}, depth = {depth}, row_tiles = {row_tiles}, column_tiles = {column_tiles};",
        f"using tile = ytk::gemm_tile<ytk::any_half<{read}>, {floats}, {halves}>;",
        f"__shared__ typename tile::template memory<{flag(product.a.along_k)}, {flag(product.b.along_k)}> shared;",
        f"for (I item = blockIdx.x; item < {count}; item += gridDim.x) {{",
        "const I row_tile = item % row_tiles, column_tile = item / row_tiles % column_tiles, place = item / row_tiles / column_tiles;",
        "(void)place;",
        *decode(product.batch, "place"),
        *print_operand("a", product.a, product.rows, product.depth),
        *print_operand("b", product.b, product.columns, product.depth),
        "const auto finish = [&](I row, I column, float s0) {",
        "(void)row; (void)column;",
        *decode(product.rows, "row"),
        *decode(product.columns, "column"),
        *print_links(product),
        "};",
        f"tile::run(shared, row_tile * {fitted.rows}, column_tile * {fitted.columns}, rows, columns, depth, a, b, finish);",
        "}",
    ]
    return Printed(lines, count, 1, fitted.threads, MAX_TILES)
