"""``ytk fleet``: what operators do to workers."""

from __future__ import annotations

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.output import note


@click.command()
@click.argument("worker")
@click.option("--reason", default="", help="Kept with the worker, for the next operator.")
@connection_options
def drain(worker: str, reason: str, controller: str | None, api_key_file: str | None) -> None:
    """Give a worker no new jobs.

    What it works on goes on to its end.
    """
    with open_client(controller, api_key_file) as client:
        view = client.drain(worker, reason=reason)
    running = f"; still working on {', '.join(view.job_ids)}" if view.job_ids else ""
    note(f"worker {worker} is {view.state.lower()}{running}")


@click.command()
@click.argument("worker")
@connection_options
def resume(worker: str, controller: str | None, api_key_file: str | None) -> None:
    """Let a drained worker serve again."""
    with open_client(controller, api_key_file) as client:
        view = client.drain(worker, resume=True)
    note(f"worker {worker} is {view.state.lower()}")
