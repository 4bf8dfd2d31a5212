"""Evaluation tasks of a region whose border is stored in other types than it was captured in: fp16 in memory, fp32 in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ytk_gaia.generator.border import Border
from ytk_gaia.generator.cuda_variants import StorageVariant
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.region_runner import RegionRunner, torch_dtype
from ytk_gaia.generator.samples import build_task
from ytk_gaia.task_format import Task

Array = np.ndarray[Any, Any]


class StoredRunner(RegionRunner):
    """Runs a region as captured, on inputs and to outputs of a variant's storage types.

    Args:
        region: With the variant's border.
        captured: The border that the program was captured with.
    """

    def __init__(self, region: Region, captured: Border) -> None:
        super().__init__(region)
        self._captured, self._stored = captured, region.border

    def _arguments(self, inputs: Sequence[Array], *, double: bool) -> list[Any]:
        arguments = super()._arguments(inputs, double=double)
        for tensor, placeholder in zip(self._captured.inputs, self._captured.placeholder_of, strict=True):
            value, wanted = arguments[placeholder], torch_dtype(tensor.dtype)
            wide = double and value.dtype.is_floating_point
            arguments[placeholder] = value if wide else value.to(wanted)
        return arguments

    def run(self, inputs: Sequence[Array], *, double: bool) -> list[torch.Tensor]:
        """Give the outputs of the region: rounded to their storage types, or in float64."""
        return self._as_stored(super().run(inputs, double=double), double=double)

    def run_with_other_ties(
        self, inputs: Sequence[Array], seed: int, *, double: bool
    ) -> tuple[list[torch.Tensor], int]:
        """Give the same with equal values in another order."""
        results, longest = super().run_with_other_ties(inputs, seed, double=double)
        return self._as_stored(results, double=double), longest

    def _as_stored(self, results: Sequence[torch.Tensor], *, double: bool) -> list[torch.Tensor]:
        pairs = zip(results, self._stored.outputs, strict=True)
        # Integers always; floats too unless they are the yardstick: what overflows in storage is then seen to.
        return [r if double and r.is_floating_point() else r.to(torch_dtype(t.dtype)) for r, t in pairs]


def stored_region(region: Region, variant: StorageVariant) -> Region:
    """Give a region with the border of a variant."""
    border = region.border
    return replace(
        region,
        border=replace(
            border,
            inputs=tuple(replace(t, dtype=variant.of(t)) for t in border.inputs),
            outputs=tuple(replace(t, dtype=variant.of(t)) for t in border.outputs),
        ),
    )


def variant_task(
    region: Region, variant: StorageVariant, *, seed: int, longest_reduction: int, tolerance: float | None
) -> Task:
    """Build the evaluation task of one variant.

    Args:
        region: As captured.
        variant: Storage types.
        seed: Of the sampled values.
        longest_reduction: Terms of the longest sum; sums run in float32, so where less is stored only the border rounds.
        tolerance: See :func:`ytk_gaia.generator.samples.build_task`.

    Raises:
        UserError: ``no_samples``: torch gives no stable answer for any sample.
    """
    own = stored_region(region, variant)
    if own.border == region.border:
        return build_task(region, seed=seed, longest_reduction=longest_reduction, tolerance=tolerance)
    narrower = any(variant.of(t).value in {"float16", "bfloat16"} for t in region.border.outputs)
    terms = 1 if narrower else longest_reduction
    runner = StoredRunner(own, region.border)
    return build_task(own, seed=seed, longest_reduction=terms, tolerance=tolerance, runner=runner)
