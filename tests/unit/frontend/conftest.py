"""A model written into tmp_path, and prepare run on it in this process."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ytk_client.frontend import PrepareReport, PrepareRequest, prepare

HEADER = """
import torch
from torch import nn
from torch.nn import functional as F
"""


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[str], Path]:
    def write(source: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.write_text(HEADER + textwrap.dedent(source))
        return path

    return write


@pytest.fixture
def run_prepare(tmp_path: Path, write_model: Callable[[str], Path]) -> Callable[..., tuple[PrepareReport, Path]]:
    """Give a function (source, options) -> (report, output directory)."""

    def run(source: str | Path, **options: Any) -> tuple[PrepareReport, Path]:
        model = source if isinstance(source, Path) else write_model(source)
        out = tmp_path / "out"
        request = PrepareRequest(
            model=model,
            onnx_out=out / "model.onnx",
            npz_out=out / "model.npz",
            reference_out=out / "model.reference.npz",
            **{"torch_timing_budget_s": 0.0, "samples": 2, **options},
        )
        return prepare(request), out

    return run
