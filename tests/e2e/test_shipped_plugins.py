"""A model written with spconv, from model.py to a verified engine, with `ytk up` and without a flag about plugins."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ytk_core import sandbox
from ytk_core.archspec import host_arch_specs

from e2e.daemons import WAIT_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "spconv_second" / "model.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("spconv") is None, reason="spconv is not installed: pip install 'yasp-toolkit[spconv]'"
    ),
    pytest.mark.skipif(sandbox.detect().kind == "none", reason=sandbox.detect().reason),
]


class Shell:
    """The `ytk` of a user whose files are all below one directory."""

    def __init__(self, home: Path) -> None:
        self._env = {**os.environ, "YTK_HOME": str(home)}

    def __call__(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "-m", "ytk_client.cli.main", *map(str, words)]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == code, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done

    def data(self, *words: object) -> Any:
        """What a command prints as JSON."""
        return json.loads(self(*words, "--format", "json").stdout)


@pytest.fixture
def ytk(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "home")
    shell("up", "--detach", "--without", "gaia-generator", "--without", "gaia-evaluator")
    try:
        yield shell
    finally:
        shell("up", "--stop")


def test_second_runs_as_an_engine(ytk: Shell, tmp_path: Path) -> None:
    arch = str(host_arch_specs("ov20264")[0])
    onnx, npz, reference = (tmp_path / "out" / name for name in ("model.onnx", "model.npz", "model.reference.npz"))
    outputs = ("--onnx-out", onnx, "--npz-out", npz, "--reference-out", reference)
    prepared = ytk.data("embedded", "prepare", EXAMPLE, "-a", arch, *outputs, "--no-torch-timing")
    assert [(row["name"], row["has_plugin"], row["sites"]) for row in prepared["rows"]] == [
        ("SparseSubMConv3d", True, 3),
        ("SparseConv3d", True, 1),
        # The grid has fewer places than the declared maximum: another extent, another plugin.
        ("SparseConv3d_1", True, 1),
        ("SparseToDense", True, 1),
    ]
    bundle = tmp_path / "model.tgz"
    compiled = ytk.data(
        *("embedded", "compile", "-a", arch, "--onnx", onnx, "--npz", npz, "-o", bundle),
        *("--iterations", 2, "--warmup", 1, "--threads", 1),
    )
    found = {(plugin["namespace"], plugin["name"]) for plugin in compiled["manifest"]["plugins"]}
    assert found == {("ytk_catalogue", row["name"]) for row in prepared["rows"]}
    verified = ytk("embedded", "verify", reference, bundle)
    assert "every output is within its tolerance" in verified.stdout + verified.stderr
