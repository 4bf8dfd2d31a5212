"""Attention as loops whose parts are known by name, so that a device may take all of them at once (see ``cuda_attention``).

Run one by one the loops are right too: products, the row's largest, the row's sum, and the weighted sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ytk_gaia.generator import inductor_adapter as inductor

aten = torch.ops.aten
ops = inductor.ops

OPERATOR = aten.scaled_dot_product_attention.default


@dataclass(frozen=True)
class AttentionParts:
    """Names of the buffers of one attention.

    Attributes:
        products: Of queries and keys (..., L, S).
        scores: Scaled and masked (..., L, S).
        top: The largest score of a row (..., L).
        total: Sum of exp(score - top) of a row; no row's top counts as minus infinity.
        sums: Of exp(score - top) * value (..., L, E).
        result: sums / total, or 0 where the total is 0.
        causal: Whether query i sees keys up to i alone.
    """

    products: str
    scores: str
    top: str
    total: str
    sums: str
    result: str
    causal: bool


def parts_of(graph: Any) -> list[AttentionParts]:
    """Give the attentions of a lowered graph."""
    found: list[AttentionParts] = getattr(graph, "ytk_attentions", [])
    return found


def _expanded(box: Any, leading: list[Any]) -> Any:
    sizes = list(box.get_size())
    return inductor.lowerings[aten.expand.default](box, [*leading, *sizes[-2:]])


def _leading(*boxes: Any) -> list[Any]:
    """Give the batch sizes that all broadcast to; raises where that is not known."""
    found: list[Any] = []
    for box in boxes:
        own = [sympy.sympify(n) for n in box.get_size()[:-2]]
        found = [sympy.Integer(1)] * (len(own) - len(found)) + found
        own = [sympy.Integer(1)] * (len(found) - len(own)) + own
        for k, (a, b) in enumerate(zip(found, own, strict=True)):
            if a != b and 1 not in {a, b}:
                raise NotImplementedError("attention over batches that do not broadcast")
            found[k] = b if a == 1 else a
    return found


def lower_attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Lower ``aten.scaled_dot_product_attention``; a row of which every key is masked gives zeros, as torch's.

    Args:
        q: (..., L, E), float32 or narrower; sums and scores are float32.
        k: (..., S, E).
        v: (..., S, EV).
        attn_mask: Broadcast to (..., L, S): what is added, or where bool, what is seen.
        dropout_p: 0.
        is_causal: Whether query i sees keys up to i alone.
        scale: Of the products; None: 1 / sqrt(E).
        enable_gqa: Not served.

    Raises:
        NotImplementedError: A form that has none here.
    """
    if dropout_p or enable_gqa or q.get_dtype() is torch.float64 or (is_causal and attn_mask is not None):
        raise NotImplementedError("attention with dropout, grouped queries, float64, or two masks")
    device, floats = q.get_device(), torch.float32
    leading = _leading(q, k, v)
    q, k, v = (_expanded(box, leading) for box in (q, k, v))
    length, keys, depth, width = q.get_size()[-2], k.get_size()[-2], q.get_size()[-1], v.get_size()[-1]
    factor = 1 / math.sqrt(int(depth)) if scale is None else float(scale)
    load_q, load_k, load_v = (box.make_loader() for box in (q, k, v))

    def as_float(value: Any, box: Any) -> Any:
        return value if box.get_dtype() is floats else ops.to_dtype(value, floats, src_dtype=box.get_dtype())

    def product(index: Any, reduced: Any) -> Any:
        *n, i, j = index
        return ops.mul(as_float(load_q([*n, i, *reduced]), q), as_float(load_k([*n, j, *reduced]), k))

    products = inductor.reduction(device, floats, [*leading, length, keys], [depth], product)
    load_products = products.make_loader()
    mask = None if attn_mask is None else inductor.lowerings[aten.expand.default](attn_mask, [*leading, length, keys])
    load_mask = None if mask is None else mask.make_loader()

    def score(index: Any) -> Any:
        value = ops.mul(load_products(index), ops.constant(factor, floats))
        hidden = ops.constant(-math.inf, floats)
        if is_causal:
            row, key = (ops.index_expr(n, torch.int64) for n in index[-2:])
            return ops.where(ops.le(key, row), value, hidden)
        if load_mask is None or mask is None:
            return value
        if mask.get_dtype() is torch.bool:
            return ops.where(load_mask(index), value, hidden)
        return ops.add(value, as_float(load_mask(index), mask))

    scores = inductor.pointwise(device, floats, [*leading, length, keys], score)
    load_scores = scores.make_loader()
    top = inductor.reduction(
        device, floats, [*leading, length], [keys], lambda index, reduced: load_scores([*index, *reduced]), "max"
    )
    load_top = top.make_loader()

    def exponential(row: Any, key: Any) -> Any:
        largest = load_top(row)
        none = ops.eq(largest, ops.constant(-math.inf, floats))
        largest = ops.where(none, ops.constant(0.0, floats), largest)
        return ops.exp(ops.sub(load_scores([*row, *key]), largest))

    total = inductor.reduction(device, floats, [*leading, length], [keys], exponential)

    def weighted(index: Any, reduced: Any) -> Any:
        *n, i, e = index
        return ops.mul(exponential([*n, i], reduced), as_float(load_v([*n, *reduced, e]), v))

    sums = inductor.reduction(device, floats, [*leading, length, width], [keys], weighted)
    load_sums, load_total = sums.make_loader(), total.make_loader()

    def divided(index: Any) -> Any:
        whole = load_total(index[:-1])
        none = ops.eq(whole, ops.constant(0.0, floats))
        share = ops.truediv(load_sums(index), whole)
        found = ops.where(none, ops.constant(0.0, floats), share)
        return found if q.get_dtype() is floats else ops.to_dtype(found, q.get_dtype(), src_dtype=floats)

    result = inductor.pointwise(device, q.get_dtype(), [*leading, length, width], divided)
    graph = inductor.V.graph
    parts = AttentionParts(
        products=products.get_name(),
        scores=scores.get_name(),
        top=top.get_name(),
        total=total.get_name(),
        sums=sums.get_name(),
        result=result.get_name(),
        causal=bool(is_causal),
    )
    graph.ytk_attentions = [*parts_of(graph), parts]
    return result
