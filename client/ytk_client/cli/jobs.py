"""``ytk jobs``: list, show, logs, attach, cancel."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from ytk_client.cli.connection import connection_options, open_client
from ytk_client.cli.output import JSON, format_option, note, print_fields, print_json, print_table
from ytk_client.cli.workers import ago
from ytk_core.errors import ToolkitError
from ytk_core.jobs import JobState

if TYPE_CHECKING:
    from ytk_client.api import Client
    from ytk_core.workers import JobView


@click.command()
@format_option()
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.lower() for state in JobState], case_sensitive=False),
    help="Only jobs in this state (repeatable).",
)
@click.option("--parent", default="", help="Only children of this job.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most this many.")
@connection_options
def list_jobs(
    states: tuple[str, ...], parent: str, limit: int, output: str, controller: str | None, api_key_file: str | None
) -> None:
    """List jobs, newest first."""
    with open_client(controller, api_key_file) as client:
        jobs = client.jobs(states=[JobState(state.upper()) for state in states], parent_id=parent, limit=limit)
    if output == JSON:
        print_json(jobs)
        return
    print_table(
        ("JOB", "KIND", "STATE", "ARCH_SPEC", "WORKER", "PARENT", "SUBMITTED", "NOTE"),
        [_row(job) for job in jobs],
        empty="no jobs",
    )


def _row(job: JobView) -> tuple[object, ...]:
    if job.failure is not None:
        remark = f"{job.failure.failure_class}: {job.failure.code}"
    elif job.from_cache:
        remark = "from the cache"
    elif not job.state.terminal and job.progress_note:
        remark = f"{job.progress:.0%} {job.progress_note}"
    else:
        remark = ""
    return (
        job.id,
        job.spec.kind,
        job.state,
        job.spec.arch_spec or "-",
        job.worker_id or "-",
        job.parent_id or "-",
        ago(job.submitted_at),
        remark,
    )


@click.command()
@click.argument("job")
@format_option()
@connection_options
def show_job(job: str, output: str, controller: str | None, api_key_file: str | None) -> None:
    """Show one job: state, inputs, outputs, failure."""
    with open_client(controller, api_key_file) as client:
        view = client.job(job)
        children = client.jobs(parent_id=job, limit=1000)
    if output == JSON:
        print_json({"job": view, "children": [child.id for child in children]})
        return
    spec = view.spec
    fields: list[tuple[str, object]] = [
        ("job", view.id),
        ("kind", spec.kind),
        ("state", view.state),
        ("progress", f"{view.progress:.0%} {view.progress_note}".strip()),
        ("arch spec", spec.arch_spec),
        ("requires", ", ".join(spec.requirements)),
        ("worker", view.worker_id),
        ("attempts", view.attempts),
        ("submitted", ago(view.submitted_at)),
        ("changed", ago(view.updated_at)),
        ("submitters", view.submitters),
        ("from cache", "yes" if view.from_cache else "no"),
        ("parent", view.parent_id),
        ("children", "\n".join(f"{child.id} {child.state}" for child in children)),
        ("parameters", json.dumps(spec.params)),
        ("inputs", "\n".join(f"{blob.name}  {blob.size_bytes} bytes  {blob.digest}" for blob in spec.inputs)),
    ]
    if view.result is not None:
        outputs = [f"{blob.name}  {blob.size_bytes} bytes  {blob.digest}" for blob in view.result.outputs]
        fields += [("outputs", "\n".join(outputs)), ("summary", json.dumps(view.result.summary, indent=2))]
    if view.failure is not None:
        fields += [
            ("failure", f"{view.failure.code} ({view.failure.failure_class})"),
            ("message", view.failure.message),
            ("hint", view.failure.hint),
        ]
    print_fields(fields)


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Start at this byte.")
@connection_options
def job_logs(job: str, follow: bool, offset: int, controller: str | None, api_key_file: str | None) -> None:
    """Print a job's log.

    The log of all attempts, as the worker wrote it; bytes go to stdout unchanged.
    """
    with open_client(controller, api_key_file) as client:
        stream = sys.stdout.buffer
        for chunk in client.logs(job, offset=offset, follow=follow):
            stream.write(chunk.data)
            stream.flush()


@click.command()
@click.argument("job")
@click.option(
    "--download",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write all outputs of the job into this directory.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print the job's log.")
@connection_options
def attach_job(job: str, directory: Path | None, quiet: bool, controller: str | None, api_key_file: str | None) -> None:
    """Follow a job to its end, and download what it gave.

    Ctrl-C detaches again. The exit code is that of the command that submitted it: 0 only if the job succeeded.
    """
    from ytk_client.cli.follow import check_ended, follow_job

    with open_client(controller, api_key_file) as client:
        view = client.job(job)
        if not view.state.terminal:
            view = follow_job(client, job, quiet=quiet)
        check_ended(view)
        note(f"job {job}: succeeded")
        if directory is not None:
            _download_all(client, view, directory)
        elif view.result is not None and view.result.outputs:
            note(f"  download what it gave: ytk jobs attach {job} --download DIRECTORY")


def _download_all(client: Client, job: JobView, directory: Path) -> None:
    from ytk_client.cli.follow import download

    assert job.result is not None
    for blob in job.result.outputs:
        name = PurePosixPath(blob.name)
        if name.is_absolute() or ".." in name.parts or not name.parts:
            msg = f"job {job.id} gave an output with the name {blob.name!r}, which would leave {directory}"
            raise ToolkitError(msg)
        download(client, blob, directory.joinpath(*name.parts))


@click.command()
@click.argument("job")
@click.option(
    "--submission", default="", help="Only take back this submission; the job goes on where others have joined it."
)
@connection_options
def cancel_job(job: str, submission: str, controller: str | None, api_key_file: str | None) -> None:
    """Cancel a job and its children."""
    with open_client(controller, api_key_file) as client:
        view = client.cancel(job, submission_id=submission)
    if submission and not view.state.terminal and view.state is not JobState.CANCELLING:
        note(f"job {job}: submission taken back; it goes on for {view.submitters} other submitter(s)")
    else:
        note(f"job {job}: {view.state.lower()}")
