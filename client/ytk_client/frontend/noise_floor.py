"""How far rounding can move each element of a value, found by moving it: a program run with every result slightly off.

The tolerance of a whole output grows with its largest element, since what cancels to nearly 0 keeps the rounding of what it
was computed from. So a small element that is simply wrong can hide beside a large one. Here each element gets a floor of its
own: where the program magnifies rounding the floor is high, where it does not it is low.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from ytk_client.frontend.recording import record
from ytk_core.accuracy import AccuracyLimit

RUNS = 4
FACTOR = 100.0
"""What two implementations may differ by, in units of one rounding of each result: a long sum in another order, or an
approximation of a function that is off by some units in the last place, is many roundings within one result."""
_NEIGHBOURS = 32
_EPSILON = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
_DTYPE_EPSILON = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def doubtful(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], limit: AccuracyLimit) -> np.ndarray[Any, Any]:
    """Mark the elements that pass only because another element of the value is large.

    Args:
        got: float64.
        want: float64, of the same shape.
        limit: Of the whole value.
    """
    return _outside(got, want, limit, np.zeros_like(want))


def unexplained(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], limit: AccuracyLimit, noise: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Mark the elements that differ by more than rounding explains.

    Args:
        got: float64.
        want: float64, of the same shape.
        limit: Of the whole value.
        noise: What one rounding of every result moved each element by, from :func:`measured`.
    """
    return _outside(got, want, limit, FACTOR * np.maximum(noise, _of_neighbours(want, noise)))


def _outside(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], limit: AccuracyLimit, floor: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    finite = np.isfinite(got) & np.isfinite(want)  # what is not finite has been compared by kind and place
    a, b = np.where(finite, got, 0.0), np.where(finite, want, 0.0)
    size = np.abs(b)
    scale = min(float(size.max(initial=0.0)), 1.0)
    outside: np.ndarray[Any, Any] = np.abs(a - b) > limit.atol * scale + limit.rtol * size + floor
    return outside


def _of_neighbours(want: np.ndarray[Any, Any], noise: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the usual noise among elements of about the same size (at most twice or half): that of one can be small by chance."""
    size = np.where(np.isfinite(want), np.abs(want), np.inf).ravel()
    order = np.argsort(size, kind="stable")
    squares = np.concatenate([[0.0], np.cumsum(np.square(noise.ravel()[order]))])
    index = np.arange(size.size)
    ranked = size[order]
    low = np.maximum(index - _NEIGHBOURS, np.searchsorted(ranked, ranked / 2, side="left"))
    high = np.minimum(index + _NEIGHBOURS + 1, np.searchsorted(ranked, ranked * 2, side="right"))
    usual = np.empty(size.size)
    usual[order] = np.sqrt(np.maximum(squares[high] - squares[low], 0.0) / (high - low))
    return usual.reshape(want.shape)


def measured(
    program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor], names: Collection[str], precision: str
) -> dict[str, np.ndarray[Any, Any]]:
    """Run a program with every floating-point result rounded at random, and give by how much each element moves.

    Args:
        program: Decomposed or carved.
        inputs: Of one sample.
        names: Of the nodes whose values are wanted.
        precision: Of the arithmetic that is compared with; a rougher one rounds more.

    Returns:
        By node name, float64 in the shape of the value: the largest of several runs. Without what is no float.
    """
    base: dict[str, np.ndarray[Any, Any]] = {}
    moved: dict[str, np.ndarray[Any, Any]] = {}

    def keep(name: str, value: Any) -> None:
        if name in names and _is_float(value):
            base[name] = _float64(value)
            moved[name] = np.zeros_like(base[name])

    def compare(name: str, value: Any) -> None:
        if name in base and _float64(value).shape == base[name].shape:
            with np.errstate(invalid="ignore"):
                gap = np.abs(_float64(value) - base[name])
            # Where only one of the two is finite, rounding decides over everything.
            moved[name] = np.maximum(moved[name], np.where(np.isnan(gap), 0.0, gap))

    record(program, inputs, [], keep)
    generator = torch.Generator().manual_seed(0)

    def rounded(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(rounded(each) for each in value)
        if not _is_float(value):
            return value
        epsilon = max(_DTYPE_EPSILON.get(value.dtype, 2.0**-24), _EPSILON[precision])
        real = torch.view_as_real(value) if value.is_complex() else value
        wide = real.to(torch.float64)
        signs = torch.randint(0, 2, real.shape, generator=generator) * 2 - 1
        signs[wide == wide.round()] = 0  # what is whole is a count, a mask or an index, and exact
        result = (wide * (1 + 2 * epsilon * signs)).to(real.dtype)
        return torch.view_as_complex(result) if value.is_complex() else result

    for _ in range(RUNS):
        record(program, inputs, [], compare, change=rounded)
    return moved


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _float64(value: torch.Tensor) -> np.ndarray[Any, Any]:
    real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    array: np.ndarray[Any, Any] = real.detach().to(torch.float64).numpy()
    return array
