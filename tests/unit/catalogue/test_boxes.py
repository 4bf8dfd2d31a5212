"""Rotated boxes: the kernel against the reference, the reference against areas that were counted."""

from __future__ import annotations

import math

import pytest
import torch

from ytk_client.frontend.catalogue.boxes import corners, rotated_iou
from ytk_core.catalogue import by_operator

from fakes.catalogue_calls import run_plugin

pytestmark = pytest.mark.torch


def settings(most=12, iou=0.3, score=0.1) -> dict[str, object]:
    return {"max_output": most, "iou_threshold": iou, "score_threshold": score}


def boxes(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(count, 2, generator=generator) * 10 + 100
    size = torch.rand(count, 2, generator=generator) * 4 + 0.5
    angle = (torch.rand(count, 1, generator=generator) - 0.5) * 7
    return [torch.cat([place, size, angle], 1), torch.rand(count, generator=generator)]


class TestKernel:
    @pytest.mark.parametrize(
        ("count", "attributes"), [(60, settings()), (60, settings(iou=0.05, score=0.5)), (1, settings())]
    )
    def test_random_boxes(self, agree, count, attributes):
        kept, found = agree("rotated_nms", boxes(count), attributes)
        assert 0 < int(found) <= attributes["max_output"]
        assert (kept[int(found) :] == -1).all()

    def test_equal_scores_go_by_their_place(self, agree):
        given, scores = boxes(20)
        kept, _ = agree("rotated_nms", [given, torch.full_like(scores, 0.5)], settings())
        assert kept[0] == 0

    def test_a_box_removes_its_copies(self, agree):
        given, scores = boxes(12)
        kept, found = agree("rotated_nms", [given[:1].repeat(12, 1), scores], settings())
        assert int(found) == 1
        assert int(kept[0]) == int(scores.argmax())

    def test_none_is_good_enough(self, agree):
        _, found = agree("rotated_nms", boxes(9), settings(score=1.0))
        assert int(found) == 0

    def test_boxes_without_area_and_scores_that_are_no_number(self, load):
        given, scores = boxes(10)
        given[2, 2], given[3, 3] = 0.0, -1.0
        scores[4], scores[5] = float("nan"), float("inf")
        status, (kept, found) = run_plugin(load, by_operator("rotated_nms"), [given, scores], settings(), [(12,), (1,)])
        assert status == 0
        assert int(kept[0]) == 5
        assert 4 not in kept.tolist()
        assert 0 < int(found) < 10


class TestOverlap:
    def test_of_straight_boxes(self):
        assert rotated_iou([0, 0, 2, 2, 0], [1, 0, 2, 2, math.pi / 2]) == pytest.approx(2 / 6)
        assert rotated_iou([0, 0, 2, 2, 0], [2, 0, 2, 2, 0]) == 0
        assert rotated_iou([5, 5, 3, 1, 0.7], [5, 5, 3, 1, 0.7 + math.pi]) == pytest.approx(1)
        # A square and the square on its corners: the intersection is an octagon.
        assert rotated_iou([0, 0, 2, 2, 0], [0, 0, 2, 2, math.pi / 4]) == pytest.approx(math.sqrt(0.5))

    def test_of_any_boxes_by_counting_points(self):
        given = boxes(12)[0].to(torch.float64)
        axis = torch.linspace(92, 118, 700, dtype=torch.float64)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)

        def covered(box):
            points = grid - box[:2]
            along = points @ torch.tensor([math.cos(box[4]), math.sin(box[4])], dtype=torch.float64)
            across = points @ torch.tensor([-math.sin(box[4]), math.cos(box[4])], dtype=torch.float64)
            return (along.abs() <= box[2] / 2) & (across.abs() <= box[3] / 2)

        masks = [covered(box) for box in given]
        for first in range(12):
            for second in range(first):
                both, either = masks[first] & masks[second], masks[first] | masks[second]
                counted = float(both.sum() / either.sum())
                assert rotated_iou(given[first].tolist(), given[second].tolist()) == pytest.approx(counted, abs=0.02)

    def test_the_angle_turns_from_x_to_y(self):
        x, y = corners([0.0, 0.0, 4.0, 0.0, math.pi / 2])[1]
        assert (x, y) == pytest.approx((0.0, 2.0))
