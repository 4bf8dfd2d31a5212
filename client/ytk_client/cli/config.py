"""``ytk config show``."""

from __future__ import annotations

import click

from ytk_client.cli.connection import connection_options
from ytk_client.cli.output import JSON, format_option, print_json, print_table


@click.command()
@format_option()
@connection_options
def show_config(controller: str | None, api_key_file: str | None, output: str) -> None:
    """Print each setting and where it came from.

    Order: flag, environment (YTK_CONTROLLER, YTK_API_KEY, YTK_API_KEY_FILE), the file ~/.config/yasp-toolkit/config.toml
    (YTK_CONFIG names another), then what `ytk up` wrote below YTK_HOME. Keys are shown by their first characters only.
    """
    from ytk_client.config import load_settings

    rows = load_settings(controller=controller, api_key_file=api_key_file).rows()
    if output == JSON:
        print_json(
            [{"name": row.name, "value": row.shown if row.value else None, "source": row.source} for row in rows]
        )
        return
    print_table(("SETTING", "VALUE", "SOURCE"), [(row.name, row.shown, row.source) for row in rows])
