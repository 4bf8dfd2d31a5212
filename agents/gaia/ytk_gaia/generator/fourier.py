"""Discrete Fourier transforms as products with small matrices, by factors of the length (Cooley and Tukey).

A length of ``n1 * n2`` is a transform of the columns of an ``n1 x n2`` table, a twiddle factor each, and a transform of its rows:
``n * (n1 + n2)`` operations, all of them loops that vectorise. Matrices are computed in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ytk_gaia.generator.real_pairs import Builder, NoRealFormError, Pair, register

aten = torch.ops.aten

_WHOLE = 32
"""Lengths up to this are one matrix."""
_LARGEST_FACTOR = 256
_NO_SCALE, _BY_ROOT = 0, 1


def _roots(b: Builder, rows: int, columns: int, length: int, dtype: torch.dtype, sign: int) -> Pair:
    """Give ``exp(sign * 2 pi i * r * c / length)`` for all r and c as constants."""
    turns = (torch.arange(rows)[:, None] * torch.arange(columns)[None, :]) % length
    angle = turns.double() * (2 * math.pi / length)
    return Pair(b.constant(torch.cos(angle).to(dtype)), b.constant((sign * torch.sin(angle)).to(dtype)))


def _factor(length: int) -> int | None:
    """Give the factor next below the root of a length that is too long for one matrix; None: it is one matrix."""
    if length <= _WHOLE:
        return None
    for factor in range(math.isqrt(length), 1, -1):
        if length % factor == 0:
            return factor
    if length > _LARGEST_FACTOR:
        raise NoRealFormError(f"a Fourier transform of the prime length {length}")
    return None


def _last(b: Builder, x: Pair, length: int, sign: int) -> Pair:
    """Transform the last dim of a (rows, length) pair."""
    rows, dtype = x.re.meta["val"].shape[0], x.re.meta["val"].dtype
    n1 = _factor(length)
    if n1 is None:
        m = _roots(b, length, length, length, dtype, sign)
        re = b.sub(b(aten.mm.default, x.re, m.re), b(aten.mm.default, x.im, m.im))
        return Pair(re, b.add(b(aten.mm.default, x.re, m.im), b(aten.mm.default, x.im, m.re)))
    n2 = length // n1

    def view(p: Pair, shape: Sequence[int]) -> Pair:
        return Pair(b(aten.reshape.default, p.re, list(shape)), b(aten.reshape.default, p.im, list(shape)))

    def swap(p: Pair) -> Pair:
        return Pair(b(aten.permute.default, p.re, [0, 2, 1]), b(aten.permute.default, p.im, [0, 2, 1]))

    columns = view(swap(view(x, (rows, n1, n2))), (rows * n2, n1))
    columns = view(_last(b, columns, n1, sign), (rows, n2, n1))
    turned = b.product(columns, _roots(b, n2, n1, length, dtype, sign))
    table = view(swap(turned), (rows * n1, n2))
    table = view(_last(b, table, n2, sign), (rows, n1, n2))
    return view(swap(table), (rows, length))


def _along(b: Builder, x: Pair, dim: int, sign: int) -> Pair:
    """Transform one dim."""
    shape = [int(n) for n in x.re.meta["val"].shape]
    dim %= len(shape)
    order = [d for d in range(len(shape)) if d != dim] + [dim]
    back = [order.index(d) for d in range(len(shape))]
    length = shape[dim]
    moved = [shape[d] for d in order]
    rows = math.prod(moved[:-1])

    def flat(t: Any) -> Any:
        return b(aten.reshape.default, b(aten.permute.default, t, order), [rows, length])

    done = _last(b, Pair(flat(x.re), flat(x.im)), length, sign)

    def unflat(t: Any) -> Any:
        return b(aten.permute.default, b(aten.reshape.default, t, moved), back)

    return Pair(unflat(done.re), unflat(done.im))


def _scaled(b: Builder, x: Pair, dims: Sequence[int], lengths: Sequence[int], normalization: int) -> Pair:
    count = math.prod(lengths[d] for d in dims)
    if normalization == _NO_SCALE or count == 0:
        return x
    factor = 1 / math.sqrt(count) if normalization == _BY_ROOT else 1 / count
    return Pair(b.mul(x.re, factor), b.mul(x.im, factor))


def c2c(b: Builder, x: Any, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    """Give ``aten._fft_c2c``."""
    pair = x if isinstance(x, Pair) else Pair(x, b.zeros(x))
    shape = [int(n) for n in pair.re.meta["val"].shape]
    for dim in dims:
        pair = _along(b, pair, dim, -1 if forward else 1)
    return _scaled(b, pair, dims, shape, normalization)


def r2c(b: Builder, x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    """Give ``aten._fft_r2c``: the half that the other follows from where it is one-sided."""
    pair = c2c(b, x, dims, normalization, forward=True)
    if not onesided:
        return pair
    last = dims[-1]
    size = int(x.meta["val"].shape[last]) // 2 + 1
    return Pair(b(aten.slice.Tensor, pair.re, last, 0, size), b(aten.slice.Tensor, pair.im, last, 0, size))


def c2r(b: Builder, x: Pair, dims: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """Give ``aten._fft_c2r``: the inverse of the one-sided form."""
    last, size = dims[-1] % x.re.meta["val"].dim(), int(last_dim_size)
    for dim in dims[:-1]:
        x = _along(b, x, dim, 1)
    have = size // 2 + 1
    rest = size - have

    def whole(t: Any, mirror: Any) -> Any:
        kept = b(aten.slice.Tensor, t, last, 0, have)
        if not rest:
            return kept
        tail = b(torch.ops.prims.rev.default, b(aten.slice.Tensor, t, last, 1, rest + 1), [last])
        return b(aten.cat.default, [kept, mirror(tail)], last)

    full = Pair(whole(x.re, lambda t: t), whole(x.im, b.neg))
    done = _along(b, full, last, 1)
    shape = [int(n) for n in full.re.meta["val"].shape]
    return _scaled(b, done, dims, shape, normalization).re


register("_fft_c2c", c2c)
register("_fft_r2c", r2c)
register("_fft_c2r", c2r)
