"""The command: what goes to stdout and stderr, and the commands that the panel gives."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ytk_client.cli.prepare import prepare
from ytk_client.frontend import PrepareRequest, table
from ytk_client.frontend import prepare as prepare_model
from ytk_core.errors import UserError
from ytk_core.formats.prepare_outputs import Candidate, CandidateReason, PluginRow, read_plugins
from ytk_core.formats.reference import read_reference

EXAMPLES = Path(__file__).parents[3] / "examples"
ARCH = "amd64-cpuv4-linux-glibc236-ov20264"


def row(name: str, *, namespace: str = "yasp") -> PluginRow:
    gaia_input = f"plugin_candidates/{name}.pt2"
    return PluginRow(
        name=name,
        has_plugin=False,
        placeholder=f"{namespace}::{name}",
        gaia_input=gaia_input,
        sites=2,
        namespace=namespace,
        version="1",
    )


def candidate(of: PluginRow, *, cannot: str | None = None) -> Candidate:
    return Candidate(
        proposed_op=of.placeholder,
        namespace=of.namespace,
        aten_op="aten::thing",
        reason=CandidateReason.RANK,
        unsupported_reason="because of its rank",
        module_path="net.head",
        module_class="model.Head",
        source_line="model.py:3: return thing(x)",
        node_inputs=(),
        call_site_shapes=(),
        region_digest="blake3:" + "0" * 64,
        cannot_be_plugin=cannot,
    )


def panel(rows, candidates, arch=None) -> list[str]:
    out = Path("out")
    return table.panel_lines(
        rows, candidates, onnx=out / "m.onnx", npz=out / "m.npz", reference=out / "m.reference.npz", arch=arch
    )


def commands(lines: list[str]) -> list[list[str]]:
    """The commands of a panel as a shell would see them."""
    text = "\n".join(line for line in lines if line.startswith("  ")).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.strip().startswith("ytk ")]


def test_panel_gives_every_next_command_with_its_paths():
    rows = [row("Col2im"), row("Other", namespace="mine")]
    lines = panel(rows, [candidate(each) for each in rows])
    found = commands(lines)
    assert [command[1:3] for command in found] == [
        ["kernelgen", "compile"],
        ["embedded", "build-plugin"],
        ["kernelgen", "compile"],
        ["embedded", "build-plugin"],
        ["embedded", "compile"],
        ["embedded", "verify"],
    ]
    assert found[0][found[0].index("-r") + 1] == "out/plugin_candidates/Col2im.pt2"
    assert "deployment_target=tensorrt" in found[0]
    assert found[1][found[1].index("--plugin-name") + 1] == "Col2im"
    assert found[3][found[3].index("--plugin-namespace") + 1] == "mine"
    plugins = [word for flag, word in zip(found[4], found[4][1:], strict=False) if flag == "--custom-plugin"]
    assert plugins == ["out/plugins/Col2im.so", "out/plugins/Other.so"]
    text = "\n".join(lines)
    assert "because of its rank" in text
    assert "net.head" in text
    assert "export ARCH=" in text
    assert "deployment_target=cpu" in text, "the demo on this machine needs the other one"


def test_panel_for_a_cpu_target_is_filled_in_completely():
    each = row("Col2im")
    lines = panel([each], [candidate(each)], arch=ARCH)
    found = commands(lines)
    assert "deployment_target=cpu" in found[0]
    assert found[0][found[0].index("-g") + 1] == "cpu"
    assert not any(blank in "\n".join(lines) for blank in ("<", "$"))
    assert found[1][found[1].index("-a") + 1] == ARCH


def test_panel_gives_no_commands_for_what_cannot_be_a_plugin():
    each = row("Unique2")
    lines = panel([each], [candidate(each, cannot="data-dependent output")])
    assert commands(lines) == []
    assert "data-dependent output" in "\n".join(lines)


@pytest.mark.torch
def test_command_prints_the_table_to_stdout_and_the_rest_to_stderr(tmp_path):
    model = EXAMPLES / "fold" / "model.py"
    arguments = [str(model), "--onnx-out", str(tmp_path / "m.onnx"), "--no-torch-timing", "--samples", "1"]
    result = CliRunner().invoke(prepare, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    heads = [line for line in result.stdout.splitlines() if "PLUGIN" in line]
    assert len(heads) == 1
    assert all(word in heads[0] for word in table.COLUMNS)
    [line] = [line for line in result.stdout.splitlines() if "Col2im" in line]
    assert "false" in line
    assert "plugin_candidates/Col2im.pt2" in line
    assert "wrote" not in result.stdout
    for name in ("m.onnx", "m.npz", "m.reference.npz", "plugins.json", "fx_nodes.json", "plugin_candidates"):
        assert f"wrote      {tmp_path / name}" in result.stderr
    assert "ytk kernelgen compile" in result.stderr
    assert read_plugins(tmp_path / "plugins.json")[0].name == "Col2im"


@pytest.mark.torch
def test_json_output_is_the_whole_report(tmp_path):
    model = EXAMPLES / "volume_lifter" / "model.py"
    arguments = [str(model), "--onnx-out", str(tmp_path / "m.onnx"), "--torch-timing-budget", "0.05", "-o", "json"]
    result = CliRunner().invoke(prepare, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    assert [each["placeholder"] for each in report["rows"]] == ["yasp::GridSampler"]
    assert report["candidates"][0]["reason"] == "rank"
    assert report["opset"] == 17
    assert all(verdict["ok"] for verdict in report["accuracy"])
    row = read_reference(tmp_path / "m.reference.npz").torch_benchmark
    assert row is not None
    assert row.iterations >= 1
    assert 0 < row.min_ms <= row.p50_ms <= row.max_ms


def test_a_profile_is_no_arch_spec(tmp_path):
    request = PrepareRequest(
        model=tmp_path / "m.py",
        onnx_out=tmp_path / "m.onnx",
        npz_out=tmp_path / "m.npz",
        reference_out=tmp_path / "r.npz",
        arch="trt86",
    )
    with pytest.raises(UserError, match="no arch spec") as caught:
        prepare_model(request)
    assert "--target-profile trt86" in caught.value.hint


def test_arch_and_profile_exclude_each_other(tmp_path):
    arguments = ["m.py", "--onnx-out", str(tmp_path / "m.onnx"), "-a", ARCH, "--target-profile", "trt86"]
    result = CliRunner().invoke(prepare, arguments)
    assert result.exit_code == 2


@pytest.mark.torch
def test_timing_reports_what_went_wrong(tmp_path):
    from ytk_client.frontend.timing import time_torch

    path = tmp_path / "model.py"
    path.write_text("raise RuntimeError('not here')\n")
    measured, problem = time_torch(path, budget_s=0.05)
    assert measured is None
    assert "not here" in problem
