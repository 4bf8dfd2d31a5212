"""Factorisations with orthogonal factors for small matrices: QR by Householder, eigenvalues and singular values by Jacobi.

As in :mod:`ytk_gaia.generator.small_linalg` every step is a loop nest over the whole batch. A Jacobi sweep runs as rounds of a
tournament: each round rotates all columns at once, each with its partner, so that a sweep of n columns is n steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

MAX_QR = 16
MAX_JACOBI = 8
_SWEEPS = 7
"""Convergence is quadratic: for matrices this small, rounding is reached in five or six."""


def _fits(a: torch.Tensor, limit: int) -> bool:
    rows, columns = a.shape[-2:]
    return isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) > 0 and max(rows, columns) <= limit


# ---- Householder -----------------------------------------------------------------------------------------------------


def _numbers(a: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.arange(a.shape[dim], device=a.device)


def _reflector(a: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give v (..., m, 1) with ``v[k] = 1``, its factor, and the element that column k is reflected to, with LAPACK's signs."""
    rows = _numbers(a, -2).unsqueeze(-1)
    column = a[..., :, k : k + 1]
    head = a[..., k : k + 1, k : k + 1]
    below = torch.where(rows > k, column, torch.zeros_like(column))
    rest = (below * below).sum(-2, keepdim=True)
    norm = (head * head + rest).sqrt()
    beta = torch.where(head < 0, norm, -norm)
    none = rest == 0
    beta = torch.where(none, head, beta)
    safe = torch.where(none, torch.ones_like(head), beta)
    factor = torch.where(none, torch.zeros_like(head), (beta - head) / safe)
    divisor = torch.where(none, torch.ones_like(head), head - beta)
    v = torch.where(rows == k, torch.ones_like(column), below / divisor)
    return v, factor, beta


def _reflected(a: torch.Tensor, v: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Give ``(1 - factor v v^T) a``."""
    return a - factor * v * (v * a).sum(-2, keepdim=True) if a.shape[-1] == 1 else a - factor * v * (v.mT @ a)


def geqrf(a: torch.Tensor) -> Any:
    """Give R with the reflectors below it, and their factors, as LAPACK does."""
    if not _fits(a, MAX_QR):
        return NotImplemented
    rows, columns = _numbers(a, -2).unsqueeze(-1), _numbers(a, -1)
    factors, packed = [], a
    for k in range(min(a.shape[-2:])):
        v, factor, beta = _reflector(packed, k)
        after = _reflected(packed, v, factor)
        after = torch.where((columns == k) & (rows == k), beta, after)
        after = torch.where((columns == k) & (rows > k), v, after)
        packed = torch.where(columns >= k, after, packed)
        factors.append(factor[..., 0])
    return packed, torch.cat(factors, -1)


def _stored(a: torch.Tensor, k: int) -> torch.Tensor:
    """Give the reflector that is stored in column k."""
    rows = _numbers(a, -2).unsqueeze(-1)
    column = a[..., :, k : k + 1]
    below = torch.where(rows > k, column, torch.zeros_like(column))
    return torch.where(rows == k, torch.ones_like(column), below)


def _apply(a: torch.Tensor, factors: torch.Tensor, other: torch.Tensor, *, transpose: bool) -> torch.Tensor:
    """Give ``Q other`` or ``Q^T other`` for the Q that reflectors and factors stand for."""
    order = range(factors.shape[-1])
    for k in order if transpose else reversed(order):
        other = _reflected(other, _stored(a, k), factors[..., k : k + 1].unsqueeze(-1))
    return other


def _eye(a: torch.Tensor, columns: int) -> torch.Tensor:
    eye = torch.eye(a.shape[-2], columns, dtype=a.dtype, device=a.device)
    return eye.expand(*a.shape[:-2], a.shape[-2], columns)


def householder_product(a: torch.Tensor, factors: torch.Tensor) -> Any:
    """Give the first columns of the product of reflectors."""
    if not _fits(a, MAX_QR):
        return NotImplemented
    return _apply(a, factors, _eye(a, a.shape[-1]), transpose=False)


def ormqr(
    a: torch.Tensor, factors: torch.Tensor, other: torch.Tensor, left: bool = True, transpose: bool = False
) -> Any:
    """Multiply by the product of reflectors, from the left or the right."""
    if not _fits(a, MAX_QR):
        return NotImplemented
    if left:
        return _apply(a, factors, other, transpose=transpose)
    return _apply(a, factors, other.mT, transpose=not transpose).mT.contiguous()


def qr(a: torch.Tensor, mode: str = "reduced") -> Any:
    """Give Q and R; mode ``r``: an empty Q."""
    found = geqrf(a)
    if found is NotImplemented:
        return NotImplemented
    packed, factors = found
    size = a.shape[-2] if mode == "complete" else min(a.shape[-2:])
    r = packed[..., :size, :].triu()
    if mode == "r":
        return torch.zeros(0, dtype=a.dtype, device=a.device), r
    return _apply(packed, factors, _eye(a, size), transpose=False), r


# ---- Jacobi ----------------------------------------------------------------------------------------------------------


def _rounds(size: int) -> list[list[int]]:
    """Give each column's partner in each round of a tournament in which all meet once; alone: its own partner."""
    players: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    rounds = []
    for _ in range(len(players) - 1):
        partner = list(range(size))
        for a, b in zip(players[: len(players) // 2], reversed(players[len(players) // 2 :]), strict=True):
            if a is not None and b is not None:
                partner[a], partner[b] = b, a
        rounds.append(partner)
        players[1:] = [players[-1], *players[1:-1]]
    return rounds


def _swapped(a: torch.Tensor, partner: list[int], dim: int) -> torch.Tensor:
    """Put each partner's column (or row) in one's own place."""
    return torch.cat([a.narrow(dim, p, 1) for p in partner], dim)


def _rotation(
    own: torch.Tensor, other: torch.Tensor, joint: torch.Tensor, partner: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give cosine and sine by which each column turns against its partner.

    Args:
        own: (..., n) squared length or diagonal element of each column.
        other: Its partner's.
        joint: What the turn is to bring to zero.
        partner: Of each column.
    """
    sides = [0.0 if p == k else (1.0 if k < p else -1.0) for k, p in enumerate(partner)]
    # Put together: a decomposition has nowhere to keep a constant.
    side = torch.cat([torch.full((1,), value, dtype=own.dtype, device=own.device) for value in sides])
    still = (joint == 0) | (side == 0)
    angle = (other - own) / (2 * torch.where(still, torch.ones_like(joint), joint))
    sign = torch.where(angle == 0, side.expand(angle.shape), torch.sign(angle))
    size = angle.abs()
    # For a huge angle its square overflows, and the tangent is half its inverse.
    tangent = torch.where(size > 1e8, 0.5 / size.clamp_min(1e-30), 1 / (size + (1 + size.clamp_max(1e8) ** 2).sqrt()))
    tangent = torch.where(still, torch.zeros_like(angle), sign * tangent)
    cosine = (1 + tangent * tangent).rsqrt()
    return cosine, tangent * cosine


def _turned(a: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, partner: list[int]) -> torch.Tensor:
    return a * cosine.unsqueeze(-2) - _swapped(a, partner, -1) * sine.unsqueeze(-2)


def _pick(a: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Give the columns in an order (..., n)."""
    return torch.gather(a, -1, order.unsqueeze(-2).expand(*a.shape[:-1], order.shape[-1]))


def eigh(a: torch.Tensor, uplo: str = "L", compute_v: bool = True) -> Any:
    """Give the eigenvalues of a symmetric matrix in ascending order, and eigenvectors as columns."""
    if not _fits(a, MAX_JACOBI):
        return NotImplemented
    size = a.shape[-1]
    half = a.tril(-1) if uplo.upper() == "L" else a.triu(1).mT
    matrix = half + half.mT + torch.diag_embed(torch.diagonal(a, dim1=-2, dim2=-1))
    vectors = _eye(a, size)
    for _ in range(_SWEEPS):
        for partner in _rounds(size):
            diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
            joint = torch.cat([matrix[..., k, p : p + 1] for k, p in enumerate(partner)], -1)
            cosine, sine = _rotation(diagonal, _swapped(diagonal, partner, -1), joint, partner)
            matrix = _turned(matrix, cosine, sine, partner)
            matrix = _turned(matrix.mT, cosine, sine, partner).mT
            vectors = _turned(vectors, cosine, sine, partner)
    values, order = torch.sort(torch.diagonal(matrix, dim1=-2, dim2=-1), dim=-1, stable=True)
    if not compute_v:
        return values, torch.zeros(0, dtype=a.dtype, device=a.device)
    return values, _pick(vectors, order)


def svd(a: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    """Give U, singular values in descending order and V^T."""
    del driver
    if a.shape[-2] == 0 or a.shape[-1] == 0:
        rows, columns = a.shape[-2:]
        empty = torch.zeros(*a.shape[:-2], 0, dtype=a.dtype, device=a.device)
        left, right = (rows, columns) if full_matrices else (0, 0)
        return _eye(a, left), empty, _eye(a.mT, right).mT.contiguous()
    if not _fits(a, MAX_JACOBI):
        return NotImplemented
    rows, columns = a.shape[-2:]
    work = a.mT if rows < columns else a
    size = work.shape[-1]
    turns = torch.eye(size, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], size, size)
    for _ in range(_SWEEPS):
        for partner in _rounds(size):
            length = (work * work).sum(-2)
            joint = (work * _swapped(work, partner, -1)).sum(-2)
            cosine, sine = _rotation(length, _swapped(length, partner, -1), joint, partner)
            work = _turned(work, cosine, sine, partner)
            turns = _turned(turns, cosine, sine, partner) if compute_uv else turns
    values, order = torch.sort((work * work).sum(-2).sqrt(), dim=-1, stable=True, descending=True)
    if not compute_uv:
        empty = torch.zeros(0, dtype=a.dtype, device=a.device)
        return empty, values, empty
    scaled = _pick(work, order) / values.clamp_min(1e-30).unsqueeze(-2)
    turns = _pick(turns, order)
    if full_matrices and rows != columns:
        # The rest of a basis: what a QR of the columns adds to them.
        scaled = torch.cat([scaled, qr(scaled, "complete")[0][..., :, size:]], -1)
    return (turns, values, scaled.mT.contiguous()) if rows < columns else (scaled, values, turns.mT.contiguous())


def pinv(
    a: torch.Tensor,
    *,
    atol: torch.Tensor | None = None,
    rtol: torch.Tensor | None = None,
    hermitian: bool = False,
) -> Any:
    """Give the pseudo-inverse: singular values up to ``max(atol, rtol * the largest)`` count as zero."""
    found = eigh(a) if hermitian else svd(a)
    if found is NotImplemented:
        return NotImplemented
    if hermitian:
        # Of a symmetric matrix only one triangle counts; its singular values are the eigenvalues' magnitudes.
        eigenvalues, u = found
        values, vt = eigenvalues.abs(), (u * torch.sign(eigenvalues).unsqueeze(-2)).mT
    else:
        u, values, vt = found
    zero = torch.zeros((), dtype=values.dtype, device=a.device)
    precision = torch.full((), torch.finfo(a.dtype).eps * max(a.shape[-2:]), dtype=values.dtype, device=a.device)
    absolute = zero if atol is None else atol
    relative = (precision if atol is None else torch.where(atol > 0, zero, precision)) if rtol is None else rtol
    limit = torch.maximum(absolute.unsqueeze(-1), relative.unsqueeze(-1) * values.amax(-1, keepdim=True))
    kept = values > limit
    inverse = torch.where(kept, 1 / torch.where(kept, values, torch.ones_like(values)), torch.zeros_like(values))
    return (vt.mT * inverse.unsqueeze(-2)) @ u.mT


TABLE: dict[Any, Callable[..., Any]] = {
    aten.geqrf.default: geqrf,
    aten.linalg_qr.default: qr,
    aten.linalg_householder_product.default: householder_product,
    aten.ormqr.default: ormqr,
    aten._linalg_eigh.default: eigh,  # noqa: SLF001 -- the operator's name
    aten._linalg_svd.default: svd,  # noqa: SLF001
    aten.linalg_pinv.atol_rtol_tensor: pinv,
}
