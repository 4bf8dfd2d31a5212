"""The options that every command takes which talks to a controller, and the client they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ytk_client.cli.output import note
from ytk_client.config import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ytk_client.api import Client


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--controller`` and ``--api-key-file``; the function receives ``controller`` and ``api_key_file``."""
    function = click.option(
        "--api-key-file", type=click.Path(dir_okay=False), help="File that holds the API key and nothing else."
    )(function)
    return click.option(
        "--controller", metavar="HOST:PORT", help="The controller; else YTK_CONTROLLER, the settings file, `ytk up`."
    )(function)


def open_client(controller: str | None, api_key_file: str | None) -> Client:
    """Make the client of a command; grpc is imported here.

    Raises:
        YtkError: A setting is wrong, or no controller is known.
    """
    from ytk_client.api import Client

    return Client(load_settings(controller=controller, api_key_file=api_key_file), notify=note)
