"""A click group that knows its commands by name and imports one only when it runs."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

import click

from ytk_client.cli.table import COMMANDS, GROUPS, Entry

if TYPE_CHECKING:
    from collections.abc import Sequence


class Invocation:
    """What the entry point needs to know after a command failed, when its click context is gone."""

    debug: bool = False


def _set_debug(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        Invocation.debug = True


def debug_option() -> click.Option:
    """Give the ``--debug`` option, which every command takes at any level."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Show the traceback of an error.",
    )


class LazyGroup(click.Group):
    """A group made from the command table.

    Args:
        path: The group's own path, e.g. ``("embedded",)``; empty for the root.
        entries: The command table.
    """

    def __init__(self, path: tuple[str, ...], entries: Sequence[Entry] = COMMANDS, *, help_text: str) -> None:
        super().__init__(name=path[-1] if path else "ytk", help=help_text, no_args_is_help=True)
        self._path = path
        self._helps: dict[str, str] = {}
        self._targets: dict[str, str] = {}
        for entry in entries:
            words = tuple(entry.path.split())
            if words[: len(path)] != path:
                continue
            name = words[len(path)]
            if len(words) == len(path) + 1:
                self._helps[name] = entry.help
                self._targets[name] = entry.target
            else:
                self._helps.setdefault(name, GROUPS[name])
        self._entries = entries
        self.params.append(debug_option())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names in the table's order, which follows the work and not the alphabet."""
        del ctx
        return list(self._helps)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and give one command; None where the table has no such name."""
        del ctx
        if cmd_name not in self._helps:
            return None
        target = self._targets.get(cmd_name)
        if target is None:
            return LazyGroup((*self._path, cmd_name), self._entries, help_text=GROUPS[cmd_name])
        module, attribute = target.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if not any("--debug" in parameter.opts for parameter in command.params):
            command.params.append(debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is refused with the nearest names."""
        name = args[0]
        if name not in self._helps and not name.startswith("-"):
            near = difflib.get_close_matches(name, self._helps, n=3)
            paths = [entry.path for entry in self._entries]
            elsewhere = [path for path in paths if difflib.get_close_matches(name, [path.split()[-1]])]
            guesses = [" ".join((*self._path, match)) for match in near] or elsewhere
            tail = f" Did you mean {' or '.join(repr('ytk ' + guess) for guess in guesses)}?" if guesses else ""
            msg = f"No such command {name!r}.{tail}"
            raise click.UsageError(msg, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' one-line helps from the table, without importing them."""
        del ctx
        if self._helps:
            with formatter.section("Commands"):
                formatter.write_dl(list(self._helps.items()))
