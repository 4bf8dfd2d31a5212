"""One attempt of one job, from the assignment to the commit."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ytk_core import convert
from ytk_core.agent.calls import CALL_DEADLINE_S, STALE_LEASE, Stubs, once, until_answered
from ytk_core.agent.context import AttemptContext
from ytk_core.agent.device import DeviceLock
from ytk_core.agent.handler import JobHandler
from ytk_core.agent.joblog import JobLog
from ytk_core.artifacts import ArtifactClient
from ytk_core.errors import FailureClass, ToolkitError, UserError, YtkError
from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, Lease
from ytk_core.sandbox import SandboxMode
from ytk_core.together import cancel_and_wait, to_its_end
from ytk_core.workers import Assignment, WorkerDescription
from ytk_proto.v1 import agents_pb2 as pb

_log = structlog.get_logger(__name__)

_KNOWN_SCHEMA_VERSIONS = frozenset({1})

Outcome = JobResult | Failure | None
"""What is committed; None: stopped because it was told to."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What every attempt of one agent shares."""

    worker: WorkerDescription
    handlers: Mapping[JobKind, JobHandler]
    stubs: Stubs
    artifacts: ArtifactClient
    work_root: Path
    lock_dir: Path | None
    sandbox_mode: SandboxMode


class Attempt:
    """Works on one assignment. :meth:`run` ends when the controller knows the outcome, or does not want it any more."""

    def __init__(self, assignment: Assignment, place: Place) -> None:
        self.lease: Lease = assignment.lease
        self._spec: JobSpec = assignment.spec
        self._place = place
        self._joblog = JobLog(place.stubs, assignment.lease)
        self._whole: asyncio.Task[None] | None = None
        self._work: asyncio.Task[JobResult] | None = None
        self._cancelled = False
        self._abandoned = False

    def cancel(self) -> None:
        """Stop the work and commit the job as cancelled; an attempt that is past its work commits what it has."""
        if self._cancelled:
            return  # each heartbeat may say it again
        self._cancelled = True
        if self._work is not None:
            self._work.cancel()

    def abandon(self) -> None:
        """Stop everything and report nothing."""
        if self._abandoned:
            return
        self._abandoned = True
        if self._whole is not None:
            self._whole.cancel()

    async def run(self) -> None:
        """Work. Failures of the job end in its commit; only a cancellation of the caller is raised."""
        if self._abandoned:
            return
        with structlog.contextvars.bound_contextvars(job_id=self.lease.job_id, fence=self.lease.fence):
            whole = self._whole = asyncio.create_task(self._start_work_commit(), name=f"attempt-{self.lease.job_id}")
            try:
                await asyncio.wait({whole})
            except asyncio.CancelledError:
                await cancel_and_wait(whole)
                raise
            if whole.cancelled():
                _log.info("job_abandoned")
                return
            err = whole.exception()
            if isinstance(err, YtkError):
                # Nobody is left to tell: the lease runs out, or is not ours any more.
                _log.warning("job_not_committed", code=err.code, error=err.message)
            elif err is not None:
                raise err

    async def _start_work_commit(self) -> None:
        _log.info("job_assigned", kind=str(self._spec.kind))
        sending = asyncio.create_task(self._joblog.run(), name="job-log")
        try:
            outcome = await self._work_if_wanted()
            await self._joblog.finish()
            await self._commit(outcome)
        finally:
            await cancel_and_wait(sending)
            if not sending.cancelled() and (err := sending.exception()) is not None:
                _log.error("job_log_failed", exc_info=err)

    async def _work_if_wanted(self) -> Outcome:
        request = pb.StartJobRequest(lease=convert.lease_to_pb(self.lease), worker_id=self._place.worker.worker_id)
        answer = await until_answered(
            "StartJob", lambda: self._place.stubs.agents.StartJob(request, timeout=CALL_DEADLINE_S)
        )
        if not answer.proceed or self._cancelled:
            return None
        workdir = self._place.work_root / re.sub(r"[^A-Za-z0-9_-]", "_", f"{self.lease.job_id}-{self.lease.fence}")
        try:
            await asyncio.to_thread(workdir.mkdir, mode=0o700, parents=True)
        except OSError as err:
            return Failure(failure_class=FailureClass.BOARDS, code="workdir", message=f"cannot make {workdir}: {err}")
        try:
            return await self._outcome(workdir)
        finally:
            await to_its_end(asyncio.to_thread(remove_tree, workdir))

    async def _outcome(self, workdir: Path) -> Outcome:
        work = self._work = asyncio.create_task(self._handle(workdir), name=f"work-{self.lease.job_id}")
        try:
            await asyncio.wait({work})
        finally:
            self._work = None
            await cancel_and_wait(work)
        if self._cancelled and (work.cancelled() or work.exception() is not None):
            return None  # an error on the way out of a cancelled job is not its outcome
        if work.cancelled():
            return Failure(failure_class=FailureClass.OURS, code="internal", message="the handler cancelled itself")
        err = work.exception()
        if err is None:
            return work.result()
        if isinstance(err, YtkError):
            return convert.failure_of(err)
        _log.error("handler_failed", exc_info=err)
        return Failure(
            failure_class=FailureClass.OURS,
            code="internal",
            message=f"{type(err).__name__}: {err}",
            hint="The agent's log has the traceback; report it.",
        )

    async def _handle(self, workdir: Path) -> JobResult:
        spec = self._spec
        handler = self._place.handlers.get(spec.kind)
        if handler is None:
            raise ToolkitError(f"this agent takes no {spec.kind} jobs", code="unknown_kind")
        if spec.schema_version not in _KNOWN_SCHEMA_VERSIONS:
            raise UserError(
                f"{spec.kind} parameters of version {spec.schema_version} are unknown here",
                code="schema_version",
                hint="Update the agent.",
            )
        device = DeviceLock(self._place.worker.device_uid, self._place.lock_dir)
        context = self._context(workdir, device)
        try:
            async with _limited(spec.wall_limit_s):
                if spec.measuring and self._place.worker.device_uid:
                    await device.acquire(on_wait=lambda: context.log("waiting for the device: another job measures"))
                result = await handler.run(context)
        finally:
            device.release()
        if not isinstance(result, JobResult):
            raise ToolkitError(f"the handler of {spec.kind} gave {type(result).__name__}", code="bad_result")
        return result

    def _context(self, workdir: Path, device: DeviceLock) -> AttemptContext:
        place = self._place
        return AttemptContext(
            spec=self._spec,
            lease=self.lease,
            worker_id=place.worker.worker_id,
            version=place.worker.version,
            workdir=workdir,
            sandbox_mode=place.sandbox_mode,
            stubs=place.stubs,
            artifacts=place.artifacts,
            joblog=self._joblog,
            device=device,
        )

    async def _commit(self, outcome: Outcome) -> None:
        try:
            await self._send_outcome(outcome)
        except YtkError as err:
            if err.code == STALE_LEASE or not isinstance(outcome, JobResult):
                raise
            # The result itself was refused (an output the store lost, a summary too large): say so instead.
            _log.warning("result_refused", code=err.code, error=err.message)
            await self._send_outcome(convert.failure_of(err))

    async def _send_outcome(self, outcome: Outcome) -> None:
        request = pb.CommitJobRequest(lease=convert.lease_to_pb(self.lease), worker_id=self._place.worker.worker_id)
        match outcome:
            case JobResult():
                request.result.CopyFrom(convert.job_result_to_pb(outcome))
            case Failure():
                request.failure.CopyFrom(convert.failure_to_pb(outcome))
            case None:
                request.cancelled = True
        answer = await until_answered(
            "CommitJob", lambda: self._place.stubs.agents.CommitJob(request, timeout=CALL_DEADLINE_S)
        )
        _log.info(
            "job_committed",
            state=str(convert.job_state_from_pb(answer.state)),
            code=outcome.code if isinstance(outcome, Failure) else "",
        )


async def hand_back(assignment: Assignment, place: Place) -> None:
    """Fail a job that this agent was given and does not begin, as the board's: it is tried elsewhere."""
    lease = convert.lease_to_pb(assignment.lease)
    worker_id = place.worker.worker_id
    failure = Failure(failure_class=FailureClass.BOARDS, code="draining", message=f"worker {worker_id} stops")
    commit = pb.CommitJobRequest(lease=lease, worker_id=worker_id, failure=convert.failure_to_pb(failure))
    try:
        start = pb.StartJobRequest(lease=lease, worker_id=worker_id)
        await once(lambda: place.stubs.agents.StartJob(start, timeout=CALL_DEADLINE_S))
        await once(lambda: place.stubs.agents.CommitJob(commit, timeout=CALL_DEADLINE_S))
    except YtkError as err:  # its lease runs out instead
        _log.warning("not_handed_back", job_id=assignment.lease.job_id, code=err.code, error=err.message)


@contextlib.asynccontextmanager
async def _limited(wall_limit_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(wall_limit_s) as limit:
            yield
    except TimeoutError as err:
        if not limit.expired():
            raise
        raise UserError(
            f"the job ran over its wall limit of {wall_limit_s:g} s and was stopped",
            code="wall_limit",
            hint="Allow more time.",
        ) from err


def remove_tree(path: Path) -> None:
    """Remove a directory that untrusted code wrote to: permissions are no obstacle, links are not followed."""

    def unlock(function: Callable[..., Any], name: str, _info: object) -> None:
        entry = Path(name)
        with contextlib.suppress(OSError):
            entry.parent.chmod(stat.S_IRWXU)
            if not entry.is_symlink():  # chmod follows links
                entry.chmod(stat.S_IRWXU)
            function(name)

    shutil.rmtree(path, onerror=unlock)
    if path.exists():  # a directory without permissions was opened up and left: once more
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _log.warning("workdir_left", path=str(path))
