"""``ytk embedded workers``, ``ytk eval workers`` and ``ytk fleet workers``: one listing, three selections."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.output import JSON, format_option, note, print_json, print_table

if TYPE_CHECKING:
    from ytk_core.workers import WorkerDescription, WorkerView

_NO_WORKER = "no {role} worker is connected; `ytk up` starts one on this machine"


def ago(moment: datetime | None, *, now: datetime | None = None) -> str:
    """Give a time as people say it: ``12 s ago``."""
    if moment is None:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // size} {unit} ago"
    return f"{seconds // 86400} d ago"


def show_workers(controller: str | None, api_key_file: str | None, output: str, role: str, *, lost: bool) -> None:
    """Print the workers of one role, or of all where ``role`` is empty."""
    with open_client(controller, api_key_file) as client:
        workers = client.workers(role, include_lost=lost)
    if output == JSON:
        print_json(workers)
        return
    print_table(
        ("WORKER", "ROLE", "STATE", "DEVICE", "ARCH_SPECS", "KINDS", "JOBS", "SANDBOX", "SEEN"),
        [_row(worker) for worker in workers],
        empty=_NO_WORKER.format(role=role or "such"),
    )


def _row(worker: WorkerView) -> tuple[object, ...]:
    about = worker.description
    return (
        about.worker_id,
        about.role,
        worker.state,
        about.device_name or "-",
        "\n".join(_arch_spec(about, text) for text in about.arch_specs) or "any",
        "\n".join(about.kinds),
        f"{len(worker.job_ids)}/{about.slots}",
        about.sandbox,
        ago(worker.last_seen_at),
    )


def _arch_spec(about: WorkerDescription, text: str) -> str:
    """Say of a GPU that is not there that it is not."""
    from ytk_core.workers import EMULATED

    return f"{text} ({EMULATED})" if f"{EMULATED}=={text}" in about.capabilities else text


_lost_option = click.option("--lost", is_flag=True, help="Also those that are gone.")


@click.command()
@format_option()
@_lost_option
@connection_options
def embedded_workers(controller: str | None, api_key_file: str | None, output: str, lost: bool) -> None:
    """List the workers that build and run engines.

    An ARCH_SPEC of this list is what -a takes; the best one of a worker comes first.
    """
    show_workers(controller, api_key_file, output, "kronos", lost=lost)


@click.command()
@format_option()
@_lost_option
@connection_options
def eval_workers(controller: str | None, api_key_file: str | None, output: str, lost: bool) -> None:
    """List the workers that generate and score kernels.

    A DEVICE or an ARCH_SPEC of a worker that takes kernel.evaluate is what `ytk kernelgen compile -g` takes.
    """
    show_workers(controller, api_key_file, output, "gaia", lost=lost)
    if output != JSON:
        note("-g takes a DEVICE or an ARCH_SPEC of a kernel.evaluate worker, or `cpu`")


@click.command()
@format_option()
@_lost_option
@connection_options
def fleet_workers(controller: str | None, api_key_file: str | None, output: str, lost: bool) -> None:
    """List all workers."""
    show_workers(controller, api_key_file, output, "", lost=lost)
