"""Shipped operators for a ``model.py``, where no library has one with results of a fixed size.

    from ytk_client.catalogue import rotated_nms

They are ordinary torch: they run anywhere, and ``prepare`` puts the shipped plugin in their place.
"""

from __future__ import annotations

import torch

from ytk_client.frontend.catalogue import operators as _registered  # noqa: F401 - registers torch.ops.ytk_catalogue

__all__ = ["pillar_scatter", "rotated_nms"]


def rotated_nms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    max_output: int,
    iou_threshold: float,
    score_threshold: float = float("-inf"),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the best rotated boxes that do not overlap a better one by more than ``iou_threshold``.

    Args:
        boxes: [N, 5] float32: centre x, centre y, width, height, angle in radians from the x to the y axis.
        scores: [N]; of equal scores the first box is the better one.
        max_output: Number of places in the result.
        iou_threshold: Intersection over union above which the worse box goes.
        score_threshold: Only boxes with a greater score count.

    Returns:
        Indices of the kept boxes, best first, filled up with -1, [max_output] int32; how many they are, [1] int32.
    """
    lowest = max(score_threshold, torch.finfo(torch.float32).min)
    kept, count = torch.ops.ytk_catalogue.rotated_nms(boxes, scores, max_output, iou_threshold, lowest)
    return kept, count


def pillar_scatter(
    features: torch.Tensor, coordinates: torch.Tensor, grid_size: tuple[int, int], batch_size: int = 1
) -> torch.Tensor:
    """Put pillars onto a bird's-eye view.

    Args:
        features: [N, C].
        coordinates: [N, 4] int32 (batch, z, y, x) with z of 0; a row with a negative number is padding. Of several
            pillars at one place the last one counts.
        grid_size: Rows (y) and columns (x) of the view.
        batch_size: Number of views.

    Returns:
        [batch_size, C, *grid_size], 0 where no pillar is.
    """
    canvas: torch.Tensor = torch.ops.ytk_catalogue.pillar_scatter(features, coordinates, list(grid_size), batch_size)
    return canvas
