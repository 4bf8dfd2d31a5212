"""Non-maximum suppression of rotated boxes in plain Python: the reference of that plugin."""

from __future__ import annotations

import math

import torch

Point = tuple[float, float]


def corners(box: list[float]) -> list[Point]:
    """Give the corners of (centre x, centre y, width, height, angle), in the order of the angle."""
    x, y, width, height, angle = box
    c, s = math.cos(angle) / 2, math.sin(angle) / 2
    return [
        (x + w * c * width - h * s * height, y + w * s * width + h * c * height)
        for w, h in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def _side(a: Point, b: Point, p: Point) -> float:
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])


def _area(polygon: list[Point]) -> float:
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return sum(a[0] * b[1] - a[1] * b[0] for a, b in pairs) / 2


def rotated_iou(first: list[float], second: list[float]) -> float:
    """Give the area of the intersection over that of the union; 0 of boxes without area."""
    if min(*first[2:4], *second[2:4]) <= 0:
        return 0.0
    polygon, clip = corners(first), corners(second)
    for a, b in zip(clip, clip[1:] + clip[:1], strict=True):
        kept: list[Point] = []
        for here, following in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            d0, d1 = _side(a, b, here), _side(a, b, following)
            if d0 >= 0:
                kept.append(here)
            if (d0 >= 0) != (d1 >= 0):
                t = d0 / (d0 - d1)
                kept.append((here[0] + t * (following[0] - here[0]), here[1] + t * (following[1] - here[1])))
        polygon = kept
    shared = max(_area(polygon), 0.0) if polygon else 0.0
    return shared / (first[2] * first[3] + second[2] * second[3] - shared)


def rotated_nms(
    boxes: torch.Tensor, scores: torch.Tensor, max_output: int, iou_threshold: float, score_threshold: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the best boxes that do not overlap a better one by more than ``iou_threshold``.

    Args:
        boxes: [N, 5]: centre x, centre y, width, height, angle in radians from the x to the y axis.
        scores: [N]; only greater ones than ``score_threshold`` count. Of equal scores the first box is the better one.
        max_output: Most boxes to keep.
        iou_threshold: Overlap that removes.
        score_threshold: See ``scores``.

    Returns:
        Indices of the kept boxes, best first, filled up with -1 to [max_output] int32; how many they are [1] int32.
    """
    order = torch.sort(scores, descending=True, stable=True).indices.tolist()
    given = boxes.tolist()
    kept: list[int] = []
    for index in order:
        if len(kept) == max_output:
            break
        if float(scores[index]) > score_threshold and all(
            rotated_iou(given[other], given[index]) <= iou_threshold for other in kept
        ):
            kept.append(index)
    result = torch.full((max_output,), -1, dtype=torch.int32)
    result[: len(kept)] = torch.tensor(kept, dtype=torch.int32)
    return result, torch.tensor([len(kept)], dtype=torch.int32)
