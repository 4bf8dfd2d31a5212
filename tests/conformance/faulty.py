"""Entries that end in every way an operator must not, to prove that the runner sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class _Entry:
    op: Callable[..., Any]

    def supported_dtypes(self, _device: str) -> set[torch.dtype]:
        return {torch.float32}

    def sample_inputs(self, _device: str, dtype: torch.dtype, *, requires_grad: bool) -> Iterator[Any]:
        for size in (2, 3):
            yield SimpleNamespace(input=torch.ones(size, dtype=dtype, requires_grad=requires_grad), args=(), kwargs={})


def _dies(_x: torch.Tensor) -> torch.Tensor:
    os.abort()


def _spins(_x: torch.Tensor) -> torch.Tensor:
    while True:
        pass


def entries() -> dict[str, Any]:
    """Give one entry per way to end."""
    return {"agrees": _Entry(torch.sin), "dies": _Entry(_dies), "spins": _Entry(_spins)}
