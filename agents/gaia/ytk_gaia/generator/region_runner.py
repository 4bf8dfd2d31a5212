"""Runs a region in torch: what a kernel's results are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ytk_core.dtypes import DType, itemsize
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.region_input import Region
from ytk_gaia.task_format import FLOATS

Array = np.ndarray[Any, Any]

_FACTORISATIONS = frozenset(
    [
        "cholesky",
        "cholesky_inverse",
        "cholesky_solve",
        "inverse",
        "linalg_cholesky_ex",
        "linalg_eig",
        "linalg_eigh",
        "linalg_inv_ex",
        "linalg_ldl_solve",
        "linalg_lstsq",
        "linalg_lu_factor_ex",
        "linalg_lu_solve",
        "linalg_solve_triangular",
        "linalg_tensorinv",
        "triangular_solve",
        "_linalg_eigh",
        "_linalg_solve_ex",
        "_linalg_svd",
        "linalg_inv",
        "linalg_solve",
        "linalg_cholesky",
        "linalg_pinv",
    ]
)
"""Operators without a value at a singular matrix: what torch leaves there, inf or NaN, is how its algorithm came to a stop."""
_TIE_BREAKERS = frozenset(["argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"])
"""Operators that give indices, and leave open which of several equal values comes first."""
_TORCH_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def torch_dtype(dtype: DType) -> torch.dtype:
    """Give the torch dtype of the same name."""
    found: torch.dtype = getattr(torch, dtype.value)
    return found


class _Double(torch.fx.Interpreter):  # type: ignore[misc]  # torch carries no types
    """Runs a graph with every floating-point tensor and dtype argument widened to float64."""

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        return inductor.tree_map(_widen, result)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        def wide(x: Any) -> Any:
            return torch.float64 if x in _TORCH_FLOATS else x

        return super().call_function(target, tuple(map(wide, args)), {k: wide(v) for k, v in kwargs.items()})


class _OtherTies(torch.fx.Interpreter):  # type: ignore[misc]  # torch carries no types
    """Runs a graph with equal values in another order wherever torch leaves their order open."""

    def __init__(self, module: torch.fx.GraphModule, seed: int) -> None:
        super().__init__(module)
        self._generator = torch.Generator().manual_seed(seed)
        self.longest = 0
        """The longest axis along which equal values were put in another order."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not _breaks_ties(target):
            return super().call_function(target, args, kwargs)
        given = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs  # noqa: SLF001
        values, dim = given["self"], given.get("dim", -1)
        if given.get("stable") or not values.dim() or "dim" not in {a.name for a in target._schema.arguments}:  # noqa: SLF001
            return super().call_function(target, args, kwargs)
        self.longest = max(self.longest, values.shape[dim])
        order = torch.randperm(values.shape[dim], generator=self._generator)
        given["self"] = values.index_select(dim, order)
        result = super().call_function(target, (), given)
        return order[result] if isinstance(result, torch.Tensor) else (result[0], order[result[1]])


class _OtherTiesInDouble(_OtherTies, _Double):
    """The same in float64."""


def _breaks_ties(target: Any) -> bool:
    return _name(target) in _TIE_BREAKERS


def _name(target: Any) -> str:
    return getattr(getattr(target, "overloadpacket", target), "__name__", "")


def _widen(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _TORCH_FLOATS else value


def from_storage(array: Array, dtype: DType) -> torch.Tensor:
    """Give a tensor of an array in storage dtype (bfloat16 as bits)."""
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if dtype is DType.BFLOAT16 else tensor


def to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> Array:
    """Give a tensor's values in the type that expectations are kept in."""
    result: Array = tensor.detach().to(torch.float64 if dtype == np.float64 else tensor.dtype).contiguous().numpy()
    return result.astype(dtype, copy=False)


class RegionRunner:
    """Runs a region on arrays, at its own precision or in float64.

    Args:
        region: A loaded region.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._fixed: dict[int, Any] = dict(region.border.baked)
        for index, spec in enumerate(region.program.graph_signature.input_specs):
            if hasattr(spec.arg, "value"):
                self._fixed[index] = spec.arg.value
        self._count = len(region.program.graph_signature.input_specs)

    @property
    def factorises(self) -> bool:
        """Whether the region has an operator with no value at a singular matrix."""
        return any(_name(target) in _FACTORISATIONS for target in self._targets())

    @property
    def breaks_ties(self) -> bool:
        """Whether the region gives indices among which torch leaves open which of equal values comes first."""
        return any(_breaks_ties(target) for target in self._targets())

    def _targets(self) -> list[Any]:
        return [node.target for node in self._region.program.graph.nodes if node.op == "call_function"]

    def _arguments(self, inputs: Sequence[Array], *, double: bool) -> list[Any]:
        arguments: list[Any] = [self._fixed.get(index) for index in range(self._count)]
        border = self._region.border
        for array, tensor, placeholder in zip(inputs, border.inputs, border.placeholder_of, strict=True):
            arguments[placeholder] = from_storage(array, tensor.dtype)
        return [_widen(a) for a in arguments] if double else arguments

    def run(self, inputs: Sequence[Array], *, double: bool) -> list[torch.Tensor]:
        """Give the outputs of the region.

        Args:
            inputs: In storage dtype, in the order of the border.
            double: Whether to compute in float64.
        """
        module = self._region.program.graph_module
        interpreter = _Double(module) if double else torch.fx.Interpreter(module)
        with torch.no_grad():
            return list(interpreter.run(*self._arguments(inputs, double=double)))

    def run_with_other_ties(
        self, inputs: Sequence[Array], seed: int, *, double: bool
    ) -> tuple[list[torch.Tensor], int]:
        """Give the outputs with equal values in another order where torch leaves it open, and the longest such axis.

        Args:
            inputs: As for :meth:`run`.
            seed: Of the order.
            double: As for :meth:`run`.
        """
        module = self._region.program.graph_module
        interpreter = _OtherTiesInDouble(module, seed) if double else _OtherTies(module, seed)
        with torch.no_grad():
            return list(interpreter.run(*self._arguments(inputs, double=double))), interpreter.longest

    def dependent_elements(self, inputs: Sequence[Array]) -> list[int]:
        """Give for each floating-point input the bytes of the elements that some output has a gradient by."""
        arguments = self._arguments(inputs, double=False)
        border, leaves = self._region.border, []
        for tensor, placeholder in zip(border.inputs, border.placeholder_of, strict=True):
            if tensor.dtype in FLOATS:
                arguments[placeholder] = arguments[placeholder].detach().requires_grad_()
                leaves.append((arguments[placeholder], itemsize(tensor.dtype)))
        results = [
            r for r in torch.fx.Interpreter(self._region.program.graph_module).run(*arguments) if r.requires_grad
        ]
        if not results or not leaves:
            return []
        generator = torch.Generator().manual_seed(0)
        # Random weights: a sum of a normalised row has no gradient, though every element is read.
        weights = [torch.rand(r.shape, generator=generator).to(r.dtype) + 0.5 for r in results]
        gradients = torch.autograd.grad(results, [t for t, _ in leaves], weights, allow_unused=True)
        return [
            int(torch.count_nonzero(g)) * size for g, (_, size) in zip(gradients, leaves, strict=True) if g is not None
        ]
