"""Run a handler's job in this process without controller or network: for library calls and handlers' tests."""

from __future__ import annotations

import asyncio
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.agent import tasks
from ytk_core.agent.files import check_output, describe, place_inside, task_directory
from ytk_core.agent.handler import JobHandler, blob_path
from ytk_core.errors import FailureClass, UserError, YtkError
from ytk_core.jobs import Failure, JobResult, JobSpec, JobState, Lease, NamedBlob
from ytk_core.sandbox import SandboxMode, SandboxPolicy
from ytk_core.workers import JobView


class LocalOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a local job; ``outputs`` gives each published file by name."""

    result: JobResult
    outputs: dict[str, Path]


async def run_job_locally(
    handler: JobHandler,
    spec: JobSpec,
    files: Mapping[str, Path],
    workdir: Path,
    *,
    children: Sequence[JobHandler] = (),
    sandbox_mode: SandboxMode = "optional",
    log: Callable[[str], Any] | None = None,
) -> LocalOutcome:
    """Run one job with files as its inputs.

    Args:
        handler: Takes ``spec.kind``.
        spec: The job; its inputs are made from ``files``.
        files: Input name to path.
        workdir: Existing directory; files stay in it.
        children: Handlers for the child jobs that it submits; they run in this process too.
        sandbox_mode: As an agent's.
        log: Takes the job's log text; standard error by default.

    Raises:
        YtkError: What the handler raises; UserError code ``unsatisfiable`` where no handler takes a child's kind.
    """
    inputs = tuple([await asyncio.to_thread(describe, name, path) for name, path in files.items()])
    context = LocalJobContext(
        spec=msgspec.structs.replace(spec, inputs=inputs),
        blobs={blob.digest: files[blob.name] for blob in inputs},
        workdir=workdir,
        children=children,
        sandbox_mode=sandbox_mode,
        log=log or sys.stderr.write,
    )
    try:
        result = await handler.run(context)
    finally:
        await context.close()
    return LocalOutcome(result=result, outputs={blob.name: context.blobs[blob.digest] for blob in result.outputs})


class LocalJobContext:
    """A JobContext over plain files. The log and progress are also kept in ``logged`` and ``reported``."""

    worker_id = "local"

    def __init__(
        self,
        *,
        spec: JobSpec,
        blobs: dict[str, Path],
        workdir: Path,
        children: Sequence[JobHandler] = (),
        sandbox_mode: SandboxMode = "optional",
        log: Callable[[str], Any] = sys.stderr.write,
    ) -> None:
        self.spec = spec
        self.lease = Lease(job_id=uuid.uuid4().hex, fence=1)
        self.workdir = workdir
        self.sandbox_mode: SandboxMode = sandbox_mode
        self.blobs = blobs
        self.logged: list[str] = []
        self.reported: list[tuple[float, str]] = []
        self._children = children
        self._log = log
        self._jobs: dict[str, asyncio.Task[JobView]] = {}

    async def fetch(self, name: str) -> Path:
        """Copy one input into the workdir."""
        for blob in self.spec.inputs:
            if blob.name == name:
                return await self._copy(blob, blob_path(self.workdir / "in", name))
        raise UserError(f"the job has no input {name!r}", code="input_missing")

    async def fetch_all(self, prefix: str = "") -> dict[str, Path]:
        """Copy the inputs whose names begin with ``prefix``."""
        names = [blob.name for blob in self.spec.inputs if blob.name.startswith(prefix)]
        return {name: await self.fetch(name) for name in names}

    async def fetch_blob(self, blob: NamedBlob) -> Path:
        """Copy a blob that this job or a child published."""
        directory = self.workdir / "blobs" / blob.digest.rpartition(":")[2]
        return await self._copy(blob, blob_path(directory, blob.name))

    async def _copy(self, blob: NamedBlob, dest: Path) -> Path:
        def copy() -> Path:
            if not place_inside(dest, self.workdir).exists():
                dest.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.blobs[blob.digest], dest)
            return dest

        return await asyncio.to_thread(copy)

    async def publish(self, files: Mapping[str, Path]) -> tuple[NamedBlob, ...]:
        """Check files and remember them by digest."""
        blobs = []
        for name, path in files.items():
            check_output(path, self.workdir)
            blob = await asyncio.to_thread(describe, name, path)
            self.blobs[blob.digest] = path
            blobs.append(blob)
        return tuple(blobs)

    def log(self, text: str) -> None:
        """Keep and show a line."""
        line = text if text.endswith("\n") else text + "\n"
        self.logged.append(line)
        self._log(line)

    def progress(self, fraction: float, note: str = "") -> None:
        """Keep a report."""
        self.reported.append((fraction, note))

    async def run_task(
        self,
        ref: str,
        task: Mapping[str, Any],
        *,
        sandbox: SandboxPolicy | None,
        wall_limit_s: float | None = None,
        env: Mapping[str, str] | None = None,
        blame: FailureClass | None = None,
        subdir: str = "",
    ) -> dict[str, Any]:
        """Run a task function in a child process, as an agent does."""
        workdir = await asyncio.to_thread(task_directory, self.workdir, subdir)
        return await tasks.run_task(
            ref,
            task,
            workdir,
            sandbox=sandbox,
            mode=self.sandbox_mode,
            log=lambda chunk: self.log(chunk.decode(errors="replace")),
            progress=self.progress,
            wall_limit_s=wall_limit_s or self.spec.wall_limit_s,
            env=env,
            blame=blame,
        )

    async def submit_child(self, spec: JobSpec, files: Mapping[str, Path]) -> str:
        """Start a child's handler in this process."""
        handler = next((each for each in self._children if spec.kind in each.kinds), None)
        if handler is None:
            raise UserError(f"no worker takes {spec.kind}", code="unsatisfiable", hint="Pass a handler in children.")
        job_id = uuid.uuid4().hex
        added = await self.publish(files)
        child = LocalJobContext(
            spec=msgspec.structs.replace(spec, inputs=(*spec.inputs, *added)),
            blobs=self.blobs,
            workdir=self.workdir / "jobs" / job_id,
            children=self._children,
            sandbox_mode=self.sandbox_mode,
            log=self._log,
        )
        child.workdir.mkdir(parents=True)
        self._jobs[job_id] = asyncio.create_task(_as_job(job_id, handler, child), name=f"job {job_id}")
        return job_id

    async def wait_job(self, job_id: str) -> JobView:
        """Wait for a child."""
        return await asyncio.shield(self._jobs[job_id])

    async def cancel_child(self, job_id: str) -> None:
        """Cancel a child."""
        self._jobs[job_id].cancel()

    async def close(self) -> None:
        """End the children that still run, as a job's end does."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)


async def _as_job(job_id: str, handler: JobHandler, ctx: LocalJobContext) -> JobView:
    try:
        result = await handler.run(ctx)
    except YtkError as err:
        failure = Failure(failure_class=err.failure_class, code=err.code, message=err.message, hint=err.hint)
        return JobView(id=job_id, spec=ctx.spec, state=JobState.FAILED, failure=failure)
    finally:
        await ctx.close()
    return JobView(id=job_id, spec=ctx.spec, state=JobState.SUCCEEDED, result=result)
