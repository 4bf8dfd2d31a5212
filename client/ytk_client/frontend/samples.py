"""Reference inputs: the user's own, and seeded variations of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def reference_inputs(args: Sequence[torch.Tensor], *, count: int, seed: int) -> list[tuple[torch.Tensor, ...]]:
    """Give ``count`` sets of inputs: ``args`` as they are, then variations with the same shapes, dtypes and ranges.

    A float keeps mean, deviation, lower and upper bound, so that coordinates stay in their range and depths positive;
    an integer stays between the smallest and largest value seen, so that an index stays valid; a list of places (a few
    integers a row, every row another) keeps its rows and gets another order, since no made-up place need exist.
    """
    generator = torch.Generator().manual_seed(seed)
    first = tuple(tensor.clone() for tensor in args)
    return [first] + [tuple(_variation(tensor, generator) for tensor in args) for _ in range(count - 1)]


def _variation(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.numel() == 0:
        return tensor.clone()
    if tensor.is_complex():
        real, imaginary = (_variation(part, generator) for part in (tensor.real, tensor.imag))
        return torch.complex(real, imaginary)
    if tensor.dtype is torch.bool:
        share = tensor.float().mean()
        return torch.rand(tensor.shape, generator=generator) < share
    if not tensor.is_floating_point():
        if _is_list_of_places(tensor):
            return tensor[torch.randperm(len(tensor), generator=generator)]
        wide = tensor.to(torch.int64)  # torch orders no unsigned integers; beyond int64 they stay as they are
        low, high = int(wide.min()), int(wide.max())
        if high == torch.iinfo(torch.int64).max or low < torch.iinfo(tensor.dtype).min:
            return tensor.clone()
        return torch.randint(low, high + 1, tensor.shape, generator=generator).to(tensor.dtype)
    wide = tensor.to(torch.float64)
    finite = wide[wide.isfinite()]
    if finite.numel() == 0:
        return tensor.clone()
    low, high = finite.min(), finite.max()
    deviation = finite.std() if finite.numel() > 1 else finite.abs().clamp(min=1e-3).squeeze() * 0.1
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    if finite.numel() == 1:  # one number has no range; a scale factor or a temperature stays near itself
        return (wide + noise * deviation).to(tensor.dtype)
    varied = (finite.mean() + noise * deviation).clamp(low, high)
    # Masks written as -inf stay where they are.
    return torch.where(wide.isfinite(), varied, wide).to(tensor.dtype)


def _is_list_of_places(tensor: torch.Tensor) -> bool:
    """Tell whether the rows look like coordinates: of two to eight integers, many, and no two alike but for padding."""
    if tensor.dim() != 2 or not 2 <= tensor.shape[1] <= 8 or len(tensor) <= 2 * tensor.shape[1]:
        return False
    real = tensor[(tensor >= 0).all(1)]
    return len(real) > 0 and len(torch.unique(real, dim=0)) == len(real)
