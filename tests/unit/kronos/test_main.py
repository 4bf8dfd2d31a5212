from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ytk_core.agent.device import cpu_device_uid
from ytk_core.agent.main import AgentSettings
from ytk_core.archspec import ArchSpec
from ytk_core.jobs import JobKind
from ytk_kronos import main as kronos


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return AgentSettings(
        role="kronos",
        controller="127.0.0.1:1",
        token=None,
        state_dir=tmp_path,
        worker_id="w",
        sandbox_mode="required",
        slots=1,
        extra={"host_cache": tmp_path / "hosts"},
    )


def test_a_worker_says_what_it_can_do(settings):
    facts = kronos.describe(settings)
    levels = [ArchSpec.parse(text).device for text in facts.arch_specs]
    assert levels == sorted(levels, reverse=True)
    assert all(ArchSpec.parse(text).engine_name == "openvino" for text in facts.arch_specs)
    assert facts.capabilities[:2] == ("engine==openvino", "precision==fp32")
    assert facts.device_uid == cpu_device_uid()
    assert facts.device_name


def test_handlers_take_the_three_kinds_of_engine_jobs(settings):
    kinds = {kind for handler in kronos.make_handlers(settings) for kind in handler.kinds}
    assert kinds == {JobKind.ENGINE_BUILD, JobKind.ENGINE_PROFILE, JobKind.ENGINE_VERIFY}


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        (
            "processor\t: 0\nmodel name\t: EPYC : x\nflags\t\t: fpu avx2\n\nmodel name\t: other\n",
            "EPYC : x",
            {"fpu", "avx2"},
        ),
        (
            "processor\t: 0\nFeatures\t: fp asimd bf16\n\nHardware\t: x\nModel\t: Orin\n",
            "Orin",
            {"fp", "asimd", "bf16"},
        ),
        ("", "CPU", set()),
    ],
)
def test_the_processors_name_and_flags(text, name, flags):
    assert kronos.read_cpuinfo(text) == (name, flags)


def test_help_needs_no_controller():
    result = CliRunner().invoke(kronos.main, ["--help"])
    assert result.exit_code == 0
    assert "--host-cache" in result.output


def test_the_agents_process_imports_no_engine():
    code = (
        "import sys; from ytk_kronos import handlers, library, main, tasks; "
        "print(sorted({'openvino', 'onnx', 'torch', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"
