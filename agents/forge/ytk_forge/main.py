"""``ytk-forge``: the agent, and its tools for people who look after toolchains.

Without a command it runs the agent: ``ytk-forge --controller HOST:PORT ...`` is ``ytk-forge agent --controller ...``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
import structlog

from ytk_core.agent.handler import JobHandler
from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_core.errors import NotAvailableError
from ytk_core.workers import TARGET_VERIFIED
from ytk_forge import cli
from ytk_forge.trt_headers import DECLARED_FLAG

_log = structlog.get_logger(__name__)

ROLE = "forge"
MARKED_EFFECT = f"builds only with {DECLARED_FLAG}, and marks each plugin as not target-verified"
SIGNING_KEY = "signing_key.pem"
"""In the agent's state directory, where no path is given."""


def make_handlers(settings: AgentSettings) -> Sequence[JobHandler]:
    """Give the one handler; finished builds and the signing key are kept below the agent's state directory.

    Raises:
        UserError: The signing key is no key, or others may read it.
    """
    from ytk_core.signing import load_or_create_key
    from ytk_forge.handler import BuildHandler

    path = _key_path(settings)
    key = load_or_create_key(path)
    _log.info("signing_key", key_id=key.public.key_id, public_key=str(key.public), path=str(path))
    return [BuildHandler(settings.state_dir / "builds", _toolchain_dirs(settings), signing_key=path)]


def describe(settings: AgentSettings) -> WorkerFacts:
    """Advertise the arch specs of every toolchain that is ready on this machine, those for marked builds only too.

    Raises:
        FormatError: A toolchain file is wrong.
        NotAvailableError: No toolchain is ready; the hint says what to install.
    """
    from ytk_forge.readiness import State, problems, state
    from ytk_forge.toolchain import find_compiler, load_toolchains

    arch_specs: dict[str, None] = {}
    capabilities: list[str] = []
    verified: dict[str, None] = {}
    banners: dict[str, None] = {}
    missing: list[str] = []
    for toolchain in load_toolchains(_toolchain_dirs(settings)):
        status, lacking = state(toolchain), problems(toolchain)
        if status is State.NOT_READY:
            _log.warning("toolchain_not_ready", toolchain=toolchain.name, missing=lacking)
            missing += lacking
            continue
        if status is State.MARKED:
            _log.info("toolchain_without_headers", toolchain=toolchain.name, effect=MARKED_EFFECT)
        arch_specs.update(dict.fromkeys(map(str, toolchain.arch_specs())))
        capabilities.append(f"{'toolchain' if status is State.READY else 'marked_toolchain'}=={toolchain.name}")
        if status is State.READY:
            verified.update(dict.fromkeys(f"{TARGET_VERIFIED}=={arch}" for arch in toolchain.arch_specs()))
        banners[find_compiler(toolchain).banner] = None
    if not arch_specs:
        msg = f"no toolchain is ready on this machine: {' '.join(missing)}"
        raise NotAvailableError(
            msg, code="no_toolchain", hint="Install what is missing; `ytk-forge toolchains` lists it."
        )
    from ytk_core.signing import load_or_create_key

    capabilities += verified
    capabilities.append(f"signing_key=={load_or_create_key(_key_path(settings)).public.key_id}")
    return WorkerFacts(arch_specs=tuple(arch_specs), capabilities=tuple(capabilities), device_name="; ".join(banners))


def _key_path(settings: AgentSettings) -> Path:
    named: Path | None = settings.extra.get("signing_key")
    return named or settings.state_dir / SIGNING_KEY


def _toolchain_dirs(settings: AgentSettings) -> tuple[Path, ...]:
    return tuple(settings.extra["toolchain_dirs"])


class _AgentByDefault(click.Group):
    """A group that takes what is no command of its own for options of ``agent``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``agent`` before arguments that begin with neither a command nor ``--help``."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["agent", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AgentByDefault)
def main() -> None:
    """Forge: kernel bundles into audited plugin libraries, as an agent of a controller (the default) or by hand."""


main.add_command(
    agent_main(
        ROLE,
        make_handlers,
        describe,
        options=[
            click.Option(
                ["--toolchain-dir", "toolchain_dirs"],
                multiple=True,
                envvar="YTK_FORGE_TOOLCHAINS",
                type=click.Path(path_type=Path),
                help="Directory of toolchain files; they come before the shipped ones. Repeatable.",
            ),
            click.Option(
                ["--signing-key"],
                type=click.Path(path_type=Path),
                help=f"Private key that signs manifests; made if absent. Default: {SIGNING_KEY} in the state directory.",
            ),
        ],
        # A compiler fills a core for seconds; other agents of the machine measure on the rest.
        default_slots=max(1, (os.cpu_count() or 1) // 2),
        help_text="Run the agent: take plugin.build jobs from a controller.",
    ),
    name="agent",
)
main.add_command(cli.toolchains)
main.add_command(cli.build)
main.add_command(cli.check)
main.add_command(cli.sign)
main.add_command(cli.key)

if __name__ == "__main__":
    main()
