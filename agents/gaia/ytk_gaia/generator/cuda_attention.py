"""Attention in one kernel: the nests that :mod:`.attention` has named become one, by blocks of queries. Text and sizes only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ytk_gaia.generator.attention import AttentionParts
from ytk_gaia.generator.cuda_gemm import Link, Loop, Operand, Product, extent, find_product, linear_terms, link_to
from ytk_gaia.generator.cuda_schedules import Printed
from ytk_gaia.generator.cuda_tiles import MAX_TILES, decode, print_links, print_operand, product_of
from ytk_gaia.generator.nest import Nest, NestKind
from ytk_gaia.generator.schedules import Dynamic, extent_text

MAX_WIDTH = 128
SHARED_BYTES = 48 << 10
"""What every GPU gives a block without being asked."""
_STORE = re.compile(r"ytk::store\((\w+)\[(.*)\], (\w+)\);")


@dataclass(frozen=True)
class AttentionTile:
    """How attention is cut, by the width that heads are padded to.

    Attributes:
        queries: Per block, with floats and on tensor cores.
        keys: Per turn, with floats and on tensor cores.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    threads: int = 128


_NARROW = (AttentionTile((64, 64), (32, 64)), AttentionTile((32, 64), (32, 32)))
_WIDE = (AttentionTile((32, 64), (16, 32)), AttentionTile((32, 64), (8, 16)))
_NARROW_WIDTH = 64


@dataclass(frozen=True)
class Attention:
    """One attention.

    Attributes:
        first: Product of queries (a) and keys (b).
        score: What becomes of a product.
        second: Product of probabilities and values (b).
        result: What becomes of a sum, with the row's total by the name ``total``.
        causal: Whether keys beyond the query are of no account.
    """

    first: Product
    score: Link
    second: Product
    result: Link
    causal: bool

    @property
    def width(self) -> int:
        """What heads are padded to."""
        widest = max(extent(self.first.depth), extent(self.second.columns))
        return -(-widest // 16) * 16


@dataclass
class AttentionNest(Nest):
    """Nests that are one attention."""

    attention: Attention | None = None


def _in_order(product: Product) -> Product | None:
    """Give a product with its loops in the order of the buffer that it writes; None where they do not number it row by row."""
    store = _STORE.fullmatch(product.store)
    found = linear_terms(store[2]) if store else None
    if found is None:
        return None

    def ordered(loops: Sequence[Loop]) -> tuple[Loop, ...]:
        known = [loop for loop in loops if isinstance(loop.size, Dynamic) or int(loop.size) != 1]
        return tuple(sorted(known, key=lambda loop: -found[0].get(loop.name, 0)))

    made = replace(product, batch=ordered(product.batch), rows=ordered(product.rows), columns=ordered(product.columns))
    following = 1
    for loop in reversed((*made.batch, *made.rows, *made.columns)):
        if found[0].get(loop.name, 0) != following:
            return None
        following *= int(loop.size)
    return made


def find_attention(parts: AttentionParts, nests: Mapping[str, Nest], views: frozenset[str]) -> Attention | None:
    """Give the attention of named nests; None where they are not of the form that a kernel is made of.

    Args:
        parts: Buffer names.
        nests: Buffer to nest, as printed for a GPU.
        views: Pointers that begin anywhere in a buffer.
    """
    names = (parts.products, parts.scores, parts.top, parts.total, parts.sums, parts.result)
    if not all(name in nests for name in names):
        return None
    first, second = (find_product(nests[name], views, least=1) for name in (parts.products, parts.sums))
    first, second = first and _in_order(first), second and _in_order(second)
    if first is None or second is None:
        return None
    score = link_to(first.store, nests[parts.scores], prod(int(n) for n in nests[parts.products].sizes))
    result = link_to(second.store, nests[parts.result], prod(int(n) for n in nests[parts.sums].sizes))
    counts = [[extent(part) for part in (p.batch, p.rows)] for p in (first, second)]
    if score is None or result is None or counts[0] != counts[1] or extent(first.columns) != extent(second.depth):
        return None
    known = Attention(first, score, second, result, parts.causal)
    dynamic = any(isinstance(loop.size, Dynamic) for loop in (*first.depth, *second.columns))
    store = nests[parts.total].epilogue
    total = _STORE.fullmatch(store[0]) if len(store) == 1 else None
    if total is None or dynamic or known.width > MAX_WIDTH:
        return None
    statements = [re.sub(rf"ytk::load\({total[1]}\[.*?\]\)", "total", line) for line in result.statements]
    return replace(known, result=replace(result, statements=tuple(statements)))


def with_attentions(
    parts: Sequence[AttentionParts], nests: Sequence[Nest], outputs: frozenset[str], views: frozenset[str]
) -> list[Nest]:
    """Put one nest in the place of the nests of each attention whose parts nobody else reads.

    Args:
        parts: Of the region.
        nests: In execution order.
        outputs: Buffers that are results of the region.
        views: Pointers that begin anywhere in a buffer.
    """
    left = list(nests)
    for each in parts:
        by_name = {nest.buffer: nest for nest in left}
        found = find_attention(each, by_name, views)
        inside = [each.products, each.scores, each.top, each.total, each.sums]
        if found is None:
            continue
        own = [by_name[name] for name in (*inside, each.result)]
        others = [nest for nest in left if all(nest is not o for o in own)]
        if outputs & set(inside) or any(nest.reads & set(inside) for nest in others):
            continue
        last = by_name[each.result]
        made = AttentionNest(
            buffer=each.result,
            sizes=list(last.sizes),
            reduced=list(by_name[each.products].reduced),
            kind=NestKind.REDUCTION,
            reads={name for nest in own for name in nest.reads} - {nest.buffer for nest in own},
            writes=set(last.writes),
            attention=found,
        )
        position = left.index(last)
        left[position] = made
        left = [nest for nest in left if all(nest is not o for o in own)]
    return left


def tiles_of(attention: Attention) -> tuple[AttentionTile, ...]:
    """Give the ways to cut an attention whose tiles fit 48 KiB of shared memory, the larger first."""
    tiles = _NARROW if attention.width <= _NARROW_WIDTH else _WIDE
    return tuple(tile for tile in tiles if shared_bytes(tile, attention.width) <= SHARED_BYTES)


def shared_bytes(tile: AttentionTile, width: int) -> int:
    """Give what the larger form declares; see ``ytk_attention.h``."""
    queries, keys = tile.queries[0], tile.keys[0]
    floats = 4 * (queries * (width + 1) + 2 * keys * (width + 1) + queries * (keys + 1))
    halves = 2 * (width + 8) * (tile.queries[1] + 2 * tile.keys[1])
    return max(floats, halves)


def _score(attention: Attention) -> list[str]:
    """Print the function of a product that gives its score."""
    link = attention.score
    loops, body = link.loops, [*link.statements]
    stored = _STORE.fullmatch(body.pop())
    assert stored is not None
    lines = [
        *decode(attention.first.rows, "row"),
        *decode(attention.first.columns, "column"),
        f"const I at = {link.place}; (void)at;",
        "{",
    ]
    shown = {loop.name for loop, _ in loops}
    for position, (loop, stride) in enumerate(loops):
        value = "at" if stride == 1 else f"at / {stride}"
        lines.append(
            f"const I {loop.name} = {f'{value} % {extent_text(loop.size)}' if position else value}; (void){loop.name};"
        )
    used = " ".join(body)
    lines += [f"const I i{k} = 0; (void)i{k};" for k in range(10) if f"i{k}" not in shown and f"i{k}" in used]
    return [*lines, *body, f"return (float){stored[3]};", "}"]


def _reads(*operands: Operand) -> str:
    return ", ".join(f"decltype({p})" for p in sorted({p for operand in operands for p in operand.pointers}))


def print_attention(attention: Attention, tile: AttentionTile) -> Printed:
    """Print an attention as the body of a device function, one block of queries per block and turn."""
    first, second, width = attention.first, attention.second, attention.width
    floats, halves = (
        f"ytk::attention_{form}<{tile.queries[k]}, {tile.keys[k]}, {width}, {width}>"
        for k, form in enumerate(("fma", "mma"))
    )
    rows, keys, batches = product_of(first.rows), product_of(first.columns), product_of(first.batch)
    least = min(tile.queries)
    last = "row0 + tile::queries < keys ? row0 + tile::queries : keys" if attention.causal else "keys"
    lines = [
        f"const I rows = {rows}, keys = {keys}, depth = {product_of(first.depth)}, width = {product_of(second.columns)};",
        f"using tile = ytk::gemm_tile<ytk::any_half<{_reads(first.a, first.b, second.b)}>, {floats}, {halves}>;",
        "__shared__ typename tile::memory shared;",
        "const I row_tiles = (rows + tile::queries - 1) / tile::queries;",
        f"for (I item = blockIdx.x; item < {batches} * row_tiles; item += gridDim.x) {{",
        "const I row0 = item % row_tiles * tile::queries, place = item / row_tiles;",
        f"const I last_key = {last};",
        "(void)place;",
        *decode(first.batch, "place"),
        *print_operand("queries", first.a, first.rows, first.depth),
        *print_operand("keys_", first.b, first.columns, first.depth),
        "const auto score = [&](I row, I column, float s0) {",
        "(void)row; (void)column;",
        *_score(attention),
        "};",
        "{",
        *decode(second.batch, "place"),
        *print_operand("values", second.b, second.columns, second.depth),
        "const auto finish = [&](I row, I column, float s0, float total) {",
        "(void)row; (void)column;",
        *decode(second.rows, "row"),
        *decode(second.columns, "column"),
        *print_links(replace(second, store="", links=(attention.result,))),
        "};",
        "tile::run(shared, row0, rows, keys, last_key, depth, width, queries, keys_, values, score, finish);",
        "}",
        "}",
    ]
    count = f"{batches} * (({rows} + {least - 1}) / {least})"
    return Printed(lines, count, 1, tile.threads, MAX_TILES)
