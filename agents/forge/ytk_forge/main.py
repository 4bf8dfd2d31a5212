"""``ytk-forge``: the agent, and its tools for people who look after toolchains.

Without a command it runs the agent: ``ytk-forge --controller HOST:PORT ...`` is ``ytk-forge agent --controller ...``.
"""

from __future__ import annotations

import click

from ytk_forge import cli

ROLE = "forge"


class _AgentByDefault(click.Group):
    """A group that takes what is no command of its own for options of ``agent``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``agent`` before arguments that begin with neither a command nor ``--help``."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["agent", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AgentByDefault)
def main() -> None:
    """Forge: kernel bundles into audited plugin libraries, as an agent of a controller or by hand."""


main.add_command(cli.toolchains)
main.add_command(cli.build)
main.add_command(cli.check)
