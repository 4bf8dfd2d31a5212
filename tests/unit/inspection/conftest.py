"""A model of one node, inspected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ytk_client.inspection import Inspection, Request, inspect_file

from fakes import onnx_nodes

Look = Callable[..., Inspection]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Make a model of one node and inspect it; ``target`` is a profile or an arch spec."""

    def run(
        op: str, inputs: Sequence[Any] = (onnx_nodes.IMAGE,), *, target: str | None = None, **more: Any
    ) -> Inspection:
        return inspect_file(onnx_nodes.one_node(tmp_path / "m.onnx", op, inputs, **more), Request.of(target))

    return run
