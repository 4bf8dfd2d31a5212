"""Shipped plugins, built for this machine's CPU and called through their C interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ytk_core.abi.ctypes_abi import Table, load_table
from ytk_core.archspec import host_arch_specs
from ytk_core.catalogue import Entry, by_operator
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.sandbox import detect
from ytk_forge.build import build_plugin

from fakes.catalogue_calls import reference, run_plugin


@pytest.fixture(scope="session")
def catalogue_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogue-cache")


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory, catalogue_cache: Path) -> Callable[[KernelBundle], Table]:
    """Build a bundle and load it; the same bundle once."""
    loaded: dict[str, Table] = {}
    mode = "required" if detect().kind == "bubblewrap" else "optional"

    def run(bundle: KernelBundle) -> Table:
        text = render_bundle(bundle)
        if text not in loaded:
            directory = tmp_path_factory.mktemp("catalogue")
            path = directory / "kernel.module_source.py"
            path.write_text(text)
            build_plugin(path, host_arch_specs("ov20264")[0], directory / "out", catalogue_cache, mode)
            loaded[text] = load_table(directory / "out" / "plugin.so")
        return loaded[text]

    return run


Agree = Callable[..., list[torch.Tensor]]


@pytest.fixture
def agree(load: Callable[[KernelBundle], Table]) -> Agree:
    """Call plugin and reference with the same arguments, compare all outputs, give them."""

    def check(
        operator: str, tensors: list[torch.Tensor], attributes: Mapping[str, Any], threads: int = 1
    ) -> list[torch.Tensor]:
        entry = by_operator(operator)
        assert isinstance(entry, Entry)
        wanted = reference(entry, tensors, attributes)
        status, got = run_plugin(
            load, entry, tensors, attributes, [tuple(each.shape) for each in wanted], threads=threads
        )
        assert status == 0
        for mine, theirs in zip(got, wanted, strict=True):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=entry.tolerance.rtol, atol=max(entry.tolerance.atol, 1e-6))
        return got

    return check
