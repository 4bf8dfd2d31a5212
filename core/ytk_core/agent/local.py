"""Run a handler's job in this process without controller or network: for library calls and handlers' tests."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.agent import tasks
from ytk_core.agent.blobs import BlobContext
from ytk_core.agent.files import describe, task_directory
from ytk_core.agent.handler import JobHandler
from ytk_core.agent.local_results import LocalResults
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
    results: LocalResults | None = None,
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
        results: Where children's results are kept and looked for; None: every child is done.

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
        results=results,
    )
    try:
        result = await handler.run(context)
    finally:
        await context.close()
    return LocalOutcome(result=result, outputs={blob.name: context.blobs[blob.digest] for blob in result.outputs})


class LocalJobContext(BlobContext):
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
        results: LocalResults | None = None,
        device: asyncio.Lock | None = None,
    ) -> None:
        super().__init__(spec, workdir)
        self.lease = Lease(job_id=uuid.uuid4().hex, fence=1)
        self.sandbox_mode: SandboxMode = sandbox_mode
        self.blobs = blobs
        self.logged: list[str] = []
        self.reported: list[tuple[float, str]] = []
        self._children = children
        self._log = log
        self._results = results
        # One measurement at a time, as on an agent's device.
        self.device = device or asyncio.Lock()
        self._jobs: dict[str, asyncio.Task[JobView]] = {}

    async def _bring(self, blob: NamedBlob, dest: Path) -> None:
        await asyncio.to_thread(shutil.copyfile, self.blobs[blob.digest], dest)

    async def _store(self, files: Mapping[str, Path]) -> Sequence[NamedBlob]:
        blobs = [await asyncio.to_thread(describe, name, path) for name, path in files.items()]
        self.blobs |= {blob.digest: files[blob.name] for blob in blobs}
        return blobs

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
        full = msgspec.structs.replace(spec, inputs=(*spec.inputs, *added))
        known = self._results.find(full) if self._results and not spec.no_cache else None
        if known is not None:
            result, paths = known
            self.blobs |= paths
            view = JobView(id=job_id, spec=full, state=JobState.SUCCEEDED, result=result, from_cache=True)
            self._jobs[job_id] = asyncio.create_task(_at_once(view), name=f"job {job_id}")
            return job_id
        child = LocalJobContext(
            spec=full,
            blobs=self.blobs,
            workdir=self.workdir / "jobs" / job_id,
            children=self._children,
            sandbox_mode=self.sandbox_mode,
            log=self._log,
            results=self._results,
            device=self.device,
        )
        child.workdir.mkdir(parents=True)
        work = _as_job(job_id, handler, child, self._results)
        self._jobs[job_id] = asyncio.create_task(work, name=f"job {job_id}")
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


async def _at_once(view: JobView) -> JobView:
    return view


async def _as_job(job_id: str, handler: JobHandler, ctx: LocalJobContext, results: LocalResults | None) -> JobView:
    try:
        async with ctx.device if ctx.spec.measuring else contextlib.nullcontext():
            result = await handler.run(ctx)
    except YtkError as err:
        failure = Failure(failure_class=err.failure_class, code=err.code, message=err.message, hint=err.hint)
        return JobView(id=job_id, spec=ctx.spec, state=JobState.FAILED, failure=failure)
    finally:
        await ctx.close()
    if results is not None:
        outputs = {blob.digest: ctx.blobs[blob.digest] for blob in result.outputs}
        await asyncio.to_thread(results.add, ctx.spec, result, outputs)
    return JobView(id=job_id, spec=ctx.spec, state=JobState.SUCCEEDED, result=result)
