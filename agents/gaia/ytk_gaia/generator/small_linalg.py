"""Linear algebra on small matrices as chains of pointwise steps: one per pivot, the extent being known.

Every step is a loop nest over the whole batch, so the matrices have to be small: beyond :data:`MAX_SIZE` the text of a kernel would
grow out of proportion, and a region is better left to a library.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

aten = torch.ops.aten

MAX_SIZE = 16


def _small(a: torch.Tensor) -> bool:
    return isinstance(a.shape[-1], int) and isinstance(a.shape[-2], int) and max(a.shape[-2:]) <= MAX_SIZE


def _column(a: torch.Tensor, k: int) -> torch.Tensor:
    return a[..., :, k : k + 1]


def _row(a: torch.Tensor, k: int) -> torch.Tensor:
    return a[..., k : k + 1, :]


def _rows(a: torch.Tensor) -> torch.Tensor:
    """Give the row numbers as a column."""
    return torch.arange(a.shape[-2], device=a.device).unsqueeze(-1)


def _swap(a: torch.Tensor, k: int, pivot: torch.Tensor) -> torch.Tensor:
    """Swap row ``k`` with row ``pivot`` (..., 1, 1)."""
    rows = _rows(a)
    chosen = torch.where(rows == pivot, a, torch.zeros_like(a)).sum(-2, keepdim=True)
    return torch.where(rows == k, chosen, torch.where(rows == pivot, _row(a, k), a))


def _pivot(a: torch.Tensor, k: int) -> torch.Tensor:
    """Give the row of the largest magnitude in column ``k`` from row ``k`` on, as (..., 1, 1)."""
    size = torch.where(_rows(a) >= k, _column(a, k).abs(), torch.full_like(_column(a, k), -1.0))
    return size.argmax(-2, keepdim=True)


def _lu(a: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Give L and U in one matrix, and the pivot of each step (..., 1, 1)."""
    pivots = []
    columns = torch.arange(a.shape[-1], device=a.device)
    for k in range(min(a.shape[-2:])):
        pivot = _pivot(a, k)
        pivots.append(pivot)
        a = _swap(a, k, pivot)
        factor = torch.where(
            _rows(a) > k, _column(a, k) / a[..., k : k + 1, k : k + 1], torch.zeros_like(_column(a, k))
        )
        below = torch.where(columns > k, a - factor * _row(a, k), a)
        a = torch.where((columns == k) & (_rows(a) > k), factor, below)
    return a, pivots


def _numbers(a: torch.Tensor, pivots: list[torch.Tensor]) -> torch.Tensor:
    """Give pivots as LAPACK does: counted from one."""
    if not pivots:
        return torch.zeros((*a.shape[:-2], 0), dtype=torch.int32, device=a.device)
    return torch.cat([p[..., 0] for p in pivots], -1).to(torch.int32) + 1


def _gauss_jordan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Give the solution of ``a x = b`` for (..., n, n) and (..., n, m)."""
    for k in range(a.shape[-1]):
        pivot = _pivot(a, k)
        a, b = _swap(a, k, pivot), _swap(b, k, pivot)
        scale = a[..., k : k + 1, k : k + 1]
        row_a, row_b = _row(a, k) / scale, _row(b, k) / scale
        own, factor = _rows(a) == k, _column(a, k)
        a = torch.where(own, row_a, a - factor * row_a)
        b = torch.where(own, row_b, b - factor * row_b)
    return b


def _info(a: torch.Tensor) -> torch.Tensor:
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


def inv_ex(a: torch.Tensor, *, check_errors: bool = False) -> Any:
    """Give inverse and status; a singular matrix gives infinities, since a kernel cannot raise."""
    del check_errors
    if not _small(a):
        return NotImplemented
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return _gauss_jordan(a, eye), _info(a)


def lu_factor_ex(a: torch.Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Give L and U in one matrix, pivots counted from one, and status."""
    del check_errors
    if not _small(a) or not pivot:
        return NotImplemented
    packed, pivots = _lu(a)
    return packed, _numbers(a, pivots), _info(a)


def _determinant(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    packed, pivots = _lu(a)
    diagonal = torch.diagonal(packed, dim1=-2, dim2=-1)
    sign = torch.ones_like(a[..., :1, :1].sum((-2, -1)))
    for k, pivot in enumerate(pivots):
        sign = torch.where(pivot[..., 0, 0] == k, sign, -sign)
    return diagonal, sign, packed, _numbers(a, pivots)


def det(a: torch.Tensor) -> Any:
    """Give determinant, L and U in one matrix, and pivots."""
    if not _small(a):
        return NotImplemented
    diagonal, sign, packed, numbers = _determinant(a)
    return diagonal.prod(-1) * sign, packed, numbers


def slogdet(a: torch.Tensor) -> Any:
    """Give sign, logarithm of the determinant's magnitude, L and U in one matrix, and pivots."""
    if not _small(a):
        return NotImplemented
    diagonal, sign, packed, numbers = _determinant(a)
    return torch.sign(diagonal).prod(-1) * sign, diagonal.abs().log().sum(-1), packed, numbers


def solve_ex(a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """Give solution, L and U in one matrix, pivots and status."""
    del check_errors
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    if not _small(a) or not left:
        return NotImplemented
    right = b.unsqueeze(-1) if vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    x = _gauss_jordan(a.expand(*batch, *a.shape[-2:]), right.expand(*batch, *right.shape[-2:]))
    packed, pivots = _lu(a)
    return x.squeeze(-1) if vector else x, packed, _numbers(a, pivots), _info(a)


def cholesky_ex(a: torch.Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Give the triangular factor and status; a matrix that is not positive definite gives NaN."""
    del check_errors
    if not _small(a):
        return NotImplemented
    a = a.mT if upper else a
    columns, result = torch.arange(a.shape[-1], device=a.device), torch.zeros_like(a)
    for k in range(a.shape[-1]):
        column = _column(a, k) / a[..., k : k + 1, k : k + 1].sqrt()
        column = torch.where(_rows(a) >= k, column, torch.zeros_like(column))
        result = torch.where(columns == k, column, result)
        a = a - column * column.mT
    return result.mT.contiguous() if upper else result, _info(a)


def _substitute(a: torch.Tensor, b: torch.Tensor, *, upper: bool, unit: bool) -> torch.Tensor:
    size = a.shape[-1]
    for k in range(size - 1, -1, -1) if upper else range(size):
        row = _row(b, k) if unit else _row(b, k) / a[..., k : k + 1, k : k + 1]
        rest = _rows(b) < k if upper else _rows(b) > k
        b = torch.where(_rows(b) == k, row, torch.where(rest, b - _column(a, k) * row, b))
    return b


def solve_triangular(
    a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Give the solution of a triangular system, by substitution."""
    if not _small(a):
        return NotImplemented
    if not left:
        a, b, upper = a.mT, b.mT, not upper
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = _substitute(a, b.expand(*batch, *b.shape[-2:]), upper=upper, unit=unitriangular)
    return (x if left else x.mT).contiguous()


def triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """Give solution and a copy of the matrix, as the older operator does."""
    if not _small(a):
        return NotImplemented
    matrix = a.mT if transpose else a
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = _substitute(matrix, b.expand(*batch, *b.shape[-2:]), upper=upper != transpose, unit=unitriangular)
    return x, a.expand(*batch, *a.shape[-2:]).clone()


def lu_solve(
    lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, *, left: bool = True, adjoint: bool = False
) -> Any:
    """Give the solution from a factorisation."""
    if not _small(lu) or not left or adjoint:
        return NotImplemented
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    x = b.expand(*batch, *b.shape[-2:])
    for k in range(lu.shape[-1]):
        x = _swap(x, k, (pivots[..., k] - 1).to(torch.int64).unsqueeze(-1).unsqueeze(-1))
    return _substitute(lu, _substitute(lu, x, upper=False, unit=True), upper=True, unit=False)


def _only_first(function: Callable[..., Any]) -> Callable[..., Any]:
    def first(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        return result if result is NotImplemented else result[0]

    return first


def _cholesky(a: torch.Tensor, upper: bool = False) -> Any:
    return _only_first(cholesky_ex)(a, upper=upper)


def _solve(a: torch.Tensor, b: torch.Tensor, *, left: bool = True) -> Any:
    return _only_first(solve_ex)(a, b, left=left)


def cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> Any:
    """Give the inverse of the matrix that a triangular factor belongs to; the other triangle is not read."""
    if not _small(factor):
        return NotImplemented
    lower = factor.triu().mT if upper else factor.tril()
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand(factor.shape)
    half = _substitute(lower, eye, upper=False, unit=False)
    return _substitute(lower.mT, half, upper=True, unit=False)


def cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> Any:
    """Give the solution of a system from its matrix's triangular factor."""
    if not _small(factor):
        return NotImplemented
    lower = factor.triu().mT if upper else factor.tril()
    batch = torch.broadcast_shapes(factor.shape[:-2], b.shape[:-2])
    half = _substitute(lower, b.expand(*batch, *b.shape[-2:]), upper=False, unit=False)
    return _substitute(lower.mT, half, upper=True, unit=False)


def _permutation(a: torch.Tensor, pivots: list[torch.Tensor]) -> torch.Tensor:
    """Give P (..., m, m) with ``a = P L U`` from the row swaps in their order."""
    rows = a.shape[-2]
    eye = torch.eye(rows, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], rows, rows)
    for k, pivot in enumerate(pivots):
        eye = _swap(eye, k, pivot)
    return eye.mT.contiguous()


def _triangles(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = min(packed.shape[-2:])
    lower = packed[..., :, :size].tril(-1)
    unit = torch.eye(packed.shape[-2], size, dtype=packed.dtype, device=packed.device)
    return lower + unit, packed[..., :size, :].triu()


def lu(a: torch.Tensor, *, pivot: bool = True) -> Any:
    """Give P, L and U."""
    if not _small(a) or not pivot:
        return NotImplemented
    packed, pivots = _lu(a)
    return _permutation(a, pivots), *_triangles(packed)


def lu_unpack(packed: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """Give P, L and U from a packed factorisation."""
    if not _small(packed) or not (unpack_data and unpack_pivots):
        return NotImplemented
    steps = [(pivots[..., k] - 1).to(torch.int64)[..., None, None] for k in range(pivots.shape[-1])]
    return _permutation(packed, steps), *_triangles(packed)


def _lu_factor(a: torch.Tensor, *, pivot: bool = True) -> Any:
    found = lu_factor_ex(a, pivot=pivot)
    return found if found is NotImplemented else found[:2]


def _tensor_inverse(a: torch.Tensor, ind: int = 2) -> Any:
    front, back = a.shape[:ind], a.shape[ind:]
    found = inv_ex(a.reshape(prod(front), -1))
    return found if found is NotImplemented else found[0].reshape(*back, *front)


COMPOSITES: dict[Any, Callable[..., Any]] = {
    aten.linalg_lu_factor.default: _lu_factor,
    aten.linalg_tensorinv.default: _tensor_inverse,
    aten.linalg_solve.default: _solve,
    aten.linalg_inv.default: _only_first(inv_ex),
    aten.inverse.default: _only_first(inv_ex),
    aten.linalg_cholesky.default: _only_first(cholesky_ex),
    aten.cholesky.default: _cholesky,
}
"""Operators that torch would take apart into one of :data:`TABLE` and a check that raises, which no kernel can."""

TABLE: dict[Any, Callable[..., Any]] = {
    aten.linalg_inv_ex.default: inv_ex,
    aten.linalg_lu_factor_ex.default: lu_factor_ex,
    aten.linalg_lu_solve.default: lu_solve,
    aten._linalg_det.default: det,  # noqa: SLF001 -- the operator's name
    aten._linalg_slogdet.default: slogdet,  # noqa: SLF001
    aten._linalg_solve_ex.default: solve_ex,  # noqa: SLF001
    aten.linalg_cholesky_ex.default: cholesky_ex,
    aten.linalg_solve_triangular.default: solve_triangular,
    aten.triangular_solve.default: triangular_solve,
    aten.cholesky_inverse.default: cholesky_inverse,
    aten.cholesky_solve.default: cholesky_solve,
    aten.linalg_lu.default: lu,
    aten.lu_unpack.default: lu_unpack,
}
