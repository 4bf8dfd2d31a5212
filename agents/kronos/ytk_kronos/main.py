"""``ytk-kronos``: the agent that builds, profiles and verifies engines on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click
import structlog

from ytk_core.agent.device import cpu_device_uid
from ytk_core.agent.handler import JobHandler
from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_kronos.trust import ALLOW_FLAG, PluginTrust

_log = structlog.get_logger(__name__)

ROLE = "kronos"
# CPUs that compute in bfloat16; on others an engine would only pretend to.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def make_handlers(settings: AgentSettings) -> Sequence[JobHandler]:
    """Give the three handlers; they measure this machine's processor.

    Raises:
        FormatError: A file of trusted keys cannot be read.
    """
    from ytk_kronos.handlers import BuildHandler, ProfileHandler, VerifyHandler

    cache, device, trust = _host_cache(settings), cpu_device_uid(), _trust(settings)
    if trust.allow_unsigned:
        _log.warning(
            "unsigned_plugins", effect="plugins that no trusted Forge signed are loaded too: native code of anybody"
        )
    elif not trust.keys:
        _log.warning("no_trusted_keys", effect=f"models with plugins are refused: give --trusted-keys or {ALLOW_FLAG}")
    return [kind(cache, device, trust=trust) for kind in (BuildHandler, ProfileHandler, VerifyHandler)]


def describe(settings: AgentSettings) -> WorkerFacts:
    """Advertise every CPU level of this machine for the installed OpenVINO.

    Raises:
        NotAvailableError: OpenVINO is not installed, or this machine is no CPU target.
    """
    from ytk_kronos import checks, hostlib

    specs = checks.worker_arch_specs()
    if shutil.which(hostlib.COMPILER) is None and not hostlib.host_path(_host_cache(settings)).is_file():
        _log.warning(
            "no_compiler", compiler=hostlib.COMPILER, effect="models with plugins are refused until it is installed"
        )
    model, flags = read_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    precisions = ["fp32", *(["bf16"] if flags & _BFLOAT16_FLAGS else [])]
    return WorkerFacts(
        arch_specs=tuple(map(str, specs)),
        capabilities=(
            "engine==openvino",
            *(f"precision=={precision}" for precision in precisions),
            *_trust(settings).capabilities,
        ),
        device_uid=cpu_device_uid(),
        device_name=model,
    )


def read_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Give the processor's name and flags from the text of ``/proc/cpuinfo``; the name is ``CPU`` where there is none."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or fields.get("Model") or "CPU", frozenset(flags.split())


def _host_cache(settings: AgentSettings) -> Path:
    from ytk_kronos import hostlib

    chosen: Path | None = settings.extra["host_cache"]
    return chosen or hostlib.default_cache_dir()


def _trust(settings: AgentSettings) -> PluginTrust:
    files: Sequence[Path] = settings.extra.get("trusted_keys", ())
    return PluginTrust.read(files, allow_unsigned=bool(settings.extra.get("allow_unsigned_plugins")))


main = agent_main(
    ROLE,
    make_handlers,
    describe,
    options=[
        click.Option(
            ["--host-cache"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Where the compiled engine host library is kept; ~/.cache/yasp-toolkit/hosts by default.",
        ),
        click.Option(
            ["--trusted-keys"],
            multiple=True,
            type=click.Path(path_type=Path, dir_okay=False),
            help="File of Forges' public keys (`ytk-forge key` prints the lines): plugins signed by them are loaded. Repeatable.",
        ),
        click.Option(
            [ALLOW_FLAG],
            is_flag=True,
            help="Also load plugins that no trusted Forge signed: native code of whoever submits a job.",
        ),
    ],
    help_text="Run a Kronos agent: build, profile and verify engines on this machine.",
)

if __name__ == "__main__":
    main()
