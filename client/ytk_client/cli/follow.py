"""Submit a job and stay with it: upload bar, log, progress, its end; Ctrl-C detaches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from ytk_client.cli.output import console, note
from ytk_client.detached import Detached
from ytk_core.errors import FailureClass, RemoteError, ToolkitError
from ytk_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.progress import Progress

    from ytk_client.api import Client, Submitted
    from ytk_core.jobs import JobSpec, NamedBlob
    from ytk_core.workers import JobView


class FollowOptions(NamedTuple):
    """How a command follows its job."""

    detach: bool = False
    quiet: bool = False


def follow_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--detach`` and ``-q``; the function receives ``detach`` and ``quiet``."""
    function = click.option("-q", "--quiet", is_flag=True, help="Do not print the job's log.")(function)
    return click.option(
        "--detach", is_flag=True, help="Submit, print the job's id and stop; `ytk jobs attach` follows it."
    )(function)


class _Bar:
    """A progress bar on stderr on a terminal; nothing elsewhere."""

    def __init__(self, label: str, *, in_bytes: bool = False) -> None:
        self._label = label
        self._in_bytes = in_bytes
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                ProgressColumn,
                TaskProgressColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn()]
            columns.append(DownloadColumn() if self._in_bytes else TaskProgressColumn())
            columns.append(TimeElapsedColumn())
            self._progress = Progress(*columns, console=console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._progress is None:
            note(text)
        else:
            self._progress.console.print(text, soft_wrap=True)

    def at(self, done: float, total: float, description: str = "") -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.update(
                self._task, completed=done, total=total or None, description=description or self._label
            )


class _LogLines:
    """Cuts a job's log, which comes in chunks, into lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rest = b""

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)

    def end(self) -> None:
        if self._rest:
            self._line(self._rest)
        self._rest = b""

    def _line(self, line: bytes) -> None:
        # Control characters of a remote log must not drive this terminal.
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        self._say("  | " + "".join(char if char.isprintable() or char == "\t" else "?" for char in text))


def submit_job(client: Client, spec: JobSpec, files: Mapping[str, Path]) -> Submitted:
    """Upload and submit, and say what became of it."""
    with _Bar("uploading", in_bytes=True) as bar:
        submitted = client.submit(spec, files, on_upload=bar.at)
    job = submitted.job
    if job.from_cache:
        note(f"job {job.id} ({job.spec.kind}): answered from the result cache")
    elif submitted.joined:
        note(f"job {job.id} ({job.spec.kind}): joined an equal job, {job.submitters} submitters now")
    else:
        note(f"job {job.id} ({job.spec.kind}): submitted")
    return submitted


def follow_job(client: Client, job_id: str, *, submission_id: str = "", quiet: bool = False) -> JobView:
    """Show a job's log and progress until it ends, and give it.

    Raises:
        Detached: Ctrl-C; the job goes on.
    """
    from ytk_client.api import LogChunk

    last: JobView | None = None
    try:
        with _Bar(job_id) as bar:
            log = _LogLines(bar.say)
            for event in client.events(job_id, with_log=not quiet):
                if isinstance(event, LogChunk):
                    log.add(event.data)
                    continue
                _say_change(bar, last, event)
                last = event
            log.end()
    except KeyboardInterrupt:
        raise Detached(job_id, submission_id) from None
    if last is None:
        msg = f"the controller showed nothing of job {job_id}"
        raise ToolkitError(msg)
    return last


def _say_change(bar: _Bar, before: JobView | None, now: JobView) -> None:
    if before is None or (before.state, before.worker_id) != (now.state, now.worker_id):
        match now.state:
            case JobState.QUEUED if before is None:
                bar.say(f"job {now.id}: waiting for a worker")
            case JobState.QUEUED:
                bar.say(f"job {now.id}: back in the queue after {now.attempts} attempt(s)")
            case JobState.LEASED | JobState.RUNNING if before is None or before.worker_id != now.worker_id:
                bar.say(f"job {now.id}: on worker {now.worker_id}")
            case JobState.CANCELLING:
                bar.say(f"job {now.id}: being cancelled")
            case _:
                pass
    bar.at(now.progress, 1.0, f"{now.spec.kind} {now.progress_note or now.state.lower()}")


def check_ended(job: JobView) -> JobView:
    """Give the job if it succeeded.

    Raises:
        RemoteError: It did not; the class, code and hint are those of its failure.
    """
    if job.state is JobState.SUCCEEDED and job.result is not None:
        return job
    if job.state is JobState.CANCELLED:
        raise RemoteError(
            f"job {job.id} was cancelled", code="cancelled", failure_class=FailureClass.YOURS, hint="Submit it again."
        )
    failure = job.failure
    if failure is None:
        msg = f"job {job.id} ended as {job.state} without a reason"
        raise ToolkitError(msg)
    whose = {
        FailureClass.YOURS: "the input",
        FailureClass.CANDIDATES: "the generated kernel",
        FailureClass.BOARDS: "the infrastructure",
        FailureClass.OURS: "the toolkit",
    }[failure.failure_class]
    raise RemoteError(
        f"job {job.id} failed because of {whose}: {failure.message}",
        code=failure.code,
        hint="\n        ".join(filter(None, (failure.hint, f"Its log: ytk jobs logs {job.id}"))),
        failure_class=failure.failure_class,
    )


def run_job(client: Client, spec: JobSpec, files: Mapping[str, Path], options: FollowOptions) -> JobView | None:
    """Submit a job and follow it to its success.

    Returns:
        The job, succeeded; None with ``--detach``, when its id was printed on stdout.

    Raises:
        RemoteError: It failed.
        Detached: Ctrl-C.
    """
    submitted = submit_job(client, spec, files)
    if options.detach:
        detached(submitted)
        return None
    job = submitted.job
    if not job.state.terminal:
        job = follow_job(client, job.id, submission_id=submitted.submission_id, quiet=options.quiet)
    return check_ended(job)


def detached(submitted: Submitted) -> None:
    """Print a submitted job's id on stdout, and on stderr how to get back to it."""
    job_id = submitted.job.id
    click.echo(job_id)
    note(f"  follow it: ytk jobs attach {job_id}")
    note(f"  cancel it: ytk jobs cancel {job_id} --submission {submitted.submission_id}")


def output_blob(job: JobView, name: str) -> NamedBlob:
    """Give one output of a succeeded job by name.

    Raises:
        ToolkitError: The job's worker did not publish it.
    """
    outputs = () if job.result is None else job.result.outputs
    for blob in outputs:
        if blob.name == name:
            return blob
    names = ", ".join(blob.name for blob in outputs) or "none"
    msg = f"job {job.id} gave no {name!r} (outputs: {names})"
    raise ToolkitError(msg, hint="Client and worker may be of different versions: `ytk jobs show` names the worker.")


def download(client: Client, blob: NamedBlob, dest: Path) -> None:
    """Download a blob with a bar and say that it was written."""
    with _Bar(dest.name, in_bytes=True) as bar:
        client.download(blob, dest, on_bytes=bar.at)
    note(f"  wrote      {dest}")
