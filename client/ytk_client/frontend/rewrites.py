"""Rewrites of the captured program for a target, before anything of it is refused or carved."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import torch

from ytk_client.frontend import quantized, ranks
from ytk_client.frontend.forms import RewrittenOp

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile


def rewrite(
    program: torch.export.ExportedProgram, profile: TargetProfile, keep: AbstractSet[torch.fx.Node] = frozenset()
) -> tuple[RewrittenOp, ...]:
    """Bring into another form what the target refuses as it is, and what computes the same in that form.

    Args:
        program: Decomposed, not carved yet; changed in place.
        profile: The target.
        keep: Nodes that stay as they are: somebody selected them.

    Returns:
        What was brought into another form; ``first_node`` is an FX node that was there before.
    """
    found = quantized.bring_into_form(program, profile, keep)
    if profile.max_rank is not None:
        found += ranks.lower_permutes(program, profile.max_rank, keep)
    return tuple(found)
