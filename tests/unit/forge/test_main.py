from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ytk_core.agent.main import AgentSettings
from ytk_core.archspec import host_arch_specs
from ytk_core.errors import ExitCode, NotAvailableError
from ytk_core.jobs import JobKind
from ytk_core.signing import load_key, read_trusted_keys
from ytk_forge.main import describe, main, make_handlers
from ytk_forge.readiness import State, state

from fakes.forge_toolchains import SHIPPED


def settings(tmp_path: Path, *toolchain_dirs: Path) -> AgentSettings:
    return AgentSettings(
        role="forge",
        controller="127.0.0.1:1",
        token=None,
        state_dir=tmp_path,
        worker_id="forge-x",
        sandbox_mode="required",
        slots=1,
        extra={"toolchain_dirs": toolchain_dirs},
    )


def test_advertises_every_level_of_the_ready_toolchains(tmp_path):
    facts = describe(settings(tmp_path))
    assert {str(arch) for arch in host_arch_specs("ov20264")} <= set(facts.arch_specs)
    assert len(set(facts.arch_specs)) == len(facts.arch_specs)
    assert "toolchain==amd64-linux-gcc" in facts.capabilities
    assert facts.device_uid == "", "it never measures"


def test_tells_toolchains_for_marked_builds_from_the_others(tmp_path):
    ready = {name: state(toolchain) for name, toolchain in SHIPPED.items()}
    capabilities = describe(settings(tmp_path)).capabilities
    arch_specs = describe(settings(tmp_path)).arch_specs
    for name, found in ready.items():
        assert (f"toolchain=={name}" in capabilities) == (found is State.READY)
        assert (f"marked_toolchain=={name}" in capabilities) == (found is State.MARKED)
        assert (name in arch_specs) == (found is not State.NOT_READY)
    verified = {each.partition("==")[2] for each in capabilities if each.startswith("target_verified==")}
    for name, found in ready.items():
        for arch in map(str, SHIPPED[name].arch_specs()):
            assert (arch in verified) == (found is State.READY)
    assert {str(arch) for arch in host_arch_specs("ov20264")} <= verified


def test_refuses_to_start_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailableError) as caught:
        describe(settings(tmp_path))
    assert "apt-get install g++" in caught.value.message


def test_makes_its_signing_key_once_and_advertises_it(tmp_path):
    make_handlers(settings(tmp_path))
    key = load_key(tmp_path / "signing_key.pem")
    assert f"signing_key=={key.public.key_id}" in describe(settings(tmp_path)).capabilities


def test_key_command_prints_the_line_for_trusted_keys(tmp_path):
    result = CliRunner().invoke(main, ["key", str(tmp_path / "k.pem")])
    assert result.exit_code == 0
    (tmp_path / "trusted").write_text(result.output)
    assert read_trusted_keys(tmp_path / "trusted") == (load_key(tmp_path / "k.pem").public,)


def test_takes_plugin_builds_only(tmp_path):
    (handler,) = make_handlers(settings(tmp_path))
    assert handler.kinds == {JobKind.PLUGIN_BUILD}


@pytest.mark.parametrize("args", [["--slots", "0"], ["agent", "--slots", "0"], ["--no-such-option"], []])
def test_what_is_no_command_goes_to_the_agent(args):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == ExitCode.USAGE
    assert "Usage: main agent" in result.stderr


def test_help_lists_agent_and_tools():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for command in ("agent", "toolchains", "build", "check"):
        assert f"\n  {command} " in result.output
