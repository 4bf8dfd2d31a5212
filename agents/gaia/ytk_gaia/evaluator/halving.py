"""Successive halving: who is measured further. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

FINALISTS = 4
"""As many as are compared side by side in the end."""
_ALIKE = 1.03
"""Times this close cannot be told apart after a few calls: who is just behind the cut stays in."""


def survivors(times: Mapping[str, float], baseline: str = "", least: int = FINALISTS) -> set[str]:
    """Give the candidates that go on: the faster half, those that tie with the last of it, and the baseline.

    Args:
        times: Id to time; smaller is better. Any unit, or ratios.
        baseline: Goes on whatever its time.
        least: As many go on in any case, where there are as many.
    """
    ranked = sorted(times, key=lambda name: (times[name], name))
    keep = max(least, math.ceil(len(ranked) / 2))
    if keep >= len(ranked):
        return set(ranked)
    cut = times[ranked[keep - 1]] * _ALIKE
    kept = {name for name in ranked if times[name] <= cut} | set(ranked[:keep])
    return kept | ({baseline} & set(ranked))
