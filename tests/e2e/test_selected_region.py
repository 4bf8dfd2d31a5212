"""A region chosen by a selector, its weights folded: kernel, plugin, engine, and the same numbers as torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ytk_client.frontend import PrepareRequest, prepare
from ytk_core.archspec import host_arch_specs
from ytk_core.formats.plugin_manifest import SUFFIX
from ytk_core.formats.prepare_outputs import read_plugins
from ytk_forge.build import build_plugin
from ytk_gaia.library import generate_and_choose
from ytk_kronos import library as kronos

from fakes.judge_limits import BUDGET_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "selectors" / "model.py"
SELECTOR = "yasp::Depthwise=ConvNormAct@where=stages.0.*.local.depth"


@pytest.mark.slow
@pytest.mark.torch
def test_a_folded_block_runs_as_a_plugin_in_openvino(tmp_path: Path) -> None:
    arch = host_arch_specs("ov20264")[0]
    out = tmp_path / "out"
    prepare(
        PrepareRequest(
            model=EXAMPLE,
            onnx_out=out / "model.onnx",
            npz_out=out / "model.npz",
            reference_out=out / "model.reference.npz",
            arch=str(arch),
            plugins=(SELECTOR,),
            debug_taps=True,
            torch_timing_budget_s=0.0,
        )
    )
    [row] = read_plugins(out / "plugins.json")
    assert row.sites == 2
    source = tmp_path / "kernel.py"
    config = {"deployment_target": "cpu", "strategies": "templates", "budget": BUDGET_S}
    report = generate_and_choose(out / str(row.gaia_input), config, source, arch_spec=str(arch), log=_ignore)
    assert report.winner
    build_plugin(source, arch, tmp_path / "built", tmp_path / "cache", "optional")
    library = tmp_path / f"{row.name}.so"
    shutil.copy(tmp_path / "built" / "plugin.so", library)
    shutil.copy(tmp_path / "built" / "manifest.json", library.with_name(library.name + SUFFIX))
    for graph, reference, outputs in (
        ("model.onnx", "model.reference.npz", 1),
        ("model.debug.onnx", "model.debug.reference.npz", 5),
    ):
        bundle = tmp_path / f"{graph}.tgz"
        kronos.build(out / graph, out / "model.npz", bundle, plugins=[library], arch=arch, log=_ignore)
        verdict = kronos.verify(out / reference, bundle, tmp_path / f"{graph}.json", log=_ignore)
        assert len({each.name for each in verdict.outputs}) == outputs
        assert all(each.ok for each in verdict.outputs), verdict.outputs


def _ignore(_text: str) -> None:
    """What the tools say is of interest only where they fail, and then it is in the error."""
