"""The context of a job that a controller gave."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tenacity

from ytk_core import convert
from ytk_core.agent import tasks
from ytk_core.agent.blobs import BlobContext
from ytk_core.agent.calls import BACKOFF, CALL_DEADLINE_S, Stubs, once, transient, until_answered
from ytk_core.agent.device import DeviceLock
from ytk_core.agent.files import task_directory
from ytk_core.agent.joblog import JobLog
from ytk_core.artifacts import ArtifactClient
from ytk_core.errors import BoardError, FailureClass
from ytk_core.jobs import JobSpec, Lease, NamedBlob
from ytk_core.sandbox import SandboxMode, SandboxPolicy
from ytk_core.workers import JobView, PeerVersion
from ytk_proto.v1 import jobs_pb2


class AttemptContext(BlobContext):
    """One attempt of one job; see :class:`ytk_core.agent.handler.JobContext`."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        lease: Lease,
        worker_id: str,
        version: PeerVersion,
        workdir: Path,
        sandbox_mode: SandboxMode,
        stubs: Stubs,
        artifacts: ArtifactClient,
        joblog: JobLog,
        device: DeviceLock,
    ) -> None:
        super().__init__(spec, workdir)
        self.lease = lease
        self.worker_id = worker_id
        self.sandbox_mode: SandboxMode = sandbox_mode
        self._version = version
        self._stubs = stubs
        self._artifacts = artifacts
        self._joblog = joblog
        self._device = device

    async def _bring(self, blob: NamedBlob, dest: Path) -> None:
        await self._artifacts.download(blob.digest, dest)

    async def _store(self, files: Mapping[str, Path]) -> Sequence[NamedBlob]:
        return await self._artifacts.ensure(files)

    def log(self, text: str) -> None:
        """Add a line to the job's log."""
        self._joblog.write((text if text.endswith("\n") else text + "\n").encode())

    def progress(self, fraction: float, note: str = "") -> None:
        """Report progress."""
        self._joblog.progress(fraction, note)

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
        """Run a task function in a child."""
        workdir = await asyncio.to_thread(task_directory, self.workdir, subdir)
        return await tasks.run_task(
            ref,
            task,
            workdir,
            sandbox=sandbox,
            mode=self.sandbox_mode,
            log=self._joblog.write,
            progress=self._joblog.progress,
            wall_limit_s=wall_limit_s,
            env=env,
            blame=blame,
        )

    async def submit_child(self, spec: JobSpec, files: Mapping[str, Path]) -> str:
        """Submit a child job."""
        added = await self._artifacts.ensure(files)
        request = jobs_pb2.SubmitJobRequest(
            spec=convert.job_spec_to_pb(msgspec.structs.replace(spec, inputs=(*spec.inputs, *added))),
            idempotency_key=uuid.uuid4().hex,
            parent_id=self.lease.job_id,
            parent_fence=self.lease.fence,
            version=convert.peer_version_to_pb(self._version),
        )
        answer = await until_answered("SubmitJob", lambda: self._stubs.jobs.SubmitJob(request, timeout=CALL_DEADLINE_S))
        return answer.job.id

    async def wait_job(self, job_id: str) -> JobView:
        """Wait for a job's end, with the device lent out."""
        retrying = tenacity.AsyncRetrying(retry=tenacity.retry_if_exception(transient), wait=BACKOFF, reraise=True)
        async with self._device.lent():
            return await retrying(once, lambda: self._watch(job_id))

    async def _watch(self, job_id: str) -> JobView:
        call = self._stubs.jobs.WatchJob(jobs_pb2.WatchJobRequest(id=job_id))
        try:
            async for answer in call:
                job = convert.job_from_pb(answer.job)
                if job.state.terminal:
                    return job
        finally:
            call.cancel()
        raise BoardError(f"the watch of job {job_id} ended before the job", code="unavailable")

    async def cancel_child(self, job_id: str) -> None:
        """Cancel a child."""
        request = jobs_pb2.CancelJobRequest(id=job_id)
        await until_answered("CancelJob", lambda: self._stubs.jobs.CancelJob(request, timeout=CALL_DEADLINE_S))
