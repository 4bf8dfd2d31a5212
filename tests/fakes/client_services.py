"""A controller in this process for tests of the client: real servicers on a port of their own, jobs that do what the test says.

::

    with FakeController() as fake:
        fake.answer(JobKind.PLUGIN_BUILD, outputs={"plugin.so": b"..."}, log=b"compiling\\n")
        ...
        assert fake.specs(JobKind.PLUGIN_BUILD)[0].arch_spec == "..."

A job whose kind has no answer fails. ``hold()`` keeps jobs RUNNING until ``release()``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import UTC, datetime
from typing import Any, Self

import grpc
import msgspec

from ytk_core import convert
from ytk_core.digests import digest_bytes
from ytk_core.errors import FailureClass, UserError, YtkError
from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, JobState, NamedBlob
from ytk_core.rpc_errors import to_status
from ytk_core.workers import JobView, PeerVersion, WorkerDescription, WorkerState, WorkerView
from ytk_proto.v1 import (
    artifacts_pb2,
    artifacts_pb2_grpc,
    fleet_pb2,
    fleet_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
)

KEY = "test-key"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

# What a job gives: its inputs by name -> (outputs by name, summary).
Work = Callable[[JobSpec, dict[str, bytes]], tuple[dict[str, bytes], dict[str, Any]]]


@dataclasses.dataclass
class Answer:
    """What becomes of the jobs of one kind."""

    work: Work | None = None
    failure: Failure | None = None
    log: bytes = b""


@dataclasses.dataclass
class _Job:
    view: JobView
    submission_ids: list[str]
    log: bytes = b""


class FakeController:
    """State, switches and the server."""

    def __init__(self, key: str = KEY) -> None:
        self.key = key
        self.blobs: dict[str, bytes] = {}
        self.workers: list[WorkerView] = []
        self.drained: list[tuple[str, str, bool]] = []
        self.refuse_submit: YtkError | None = None
        self.calls: list[str] = []
        self._jobs: dict[str, _Job] = {}
        self._keys: dict[str, str] = {}
        self._answers: dict[JobKind, Answer] = {}
        self._unavailable: dict[str, int] = {}
        self._go = threading.Condition()
        self._held = False
        self._port = 0
        self._server: grpc.Server | None = None

    # ---- the test's side ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen; after :meth:`stop`, on the same port."""
        server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        jobs_pb2_grpc.add_JobServiceServicer_to_server(_Jobs(self), server)
        fleet_pb2_grpc.add_FleetServiceServicer_to_server(_Fleet(self), server)
        artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server(_Artifacts(self), server)
        self._port = server.add_insecure_port(f"127.0.0.1:{self._port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Cut all connections."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def answer(
        self,
        kind: JobKind,
        *,
        outputs: dict[str, bytes] | None = None,
        summary: dict[str, Any] | None = None,
        work: Work | None = None,
        failure: Failure | None = None,
        log: bytes = b"",
    ) -> None:
        """Say what jobs of a kind give."""
        fixed = (outputs or {}, summary or {})
        self._answers[kind] = Answer(work=work or (lambda _spec, _inputs: fixed), failure=failure, log=log)

    def unavailable(self, method: str, times: int) -> None:
        """Let the next calls of one method fail as if the connection broke after the work was done."""
        self._unavailable[method] = times

    def hold(self) -> None:
        """Keep jobs RUNNING."""
        with self._go:
            self._held = True

    def release(self) -> None:
        """Let jobs end."""
        with self._go:
            self._held = False
            self._go.notify_all()

    def specs(self, kind: JobKind) -> list[JobSpec]:
        """The specs of the jobs of one kind, in order of submission."""
        return [job.view.spec for job in self._jobs.values() if job.view.spec.kind is kind]

    def add_worker(self, worker_id: str, role: str, **fields: Any) -> None:
        about = WorkerDescription(worker_id=worker_id, role=role, **fields)
        self.workers.append(WorkerView(description=about, state=WorkerState.IDLE, last_seen_at=NOW))

    # ---- the servicers' side -----------------------------------------------------------------------------------------

    def entered(self, context: grpc.ServicerContext, method: str) -> None:
        self.calls.append(method)
        metadata = dict(context.invocation_metadata())
        if metadata.get("authorization") != f"Bearer {self.key}":
            self.abort(context, UserError("the key is not known", code="unauthenticated"))

    def maybe_lose(self, context: grpc.ServicerContext, method: str) -> None:
        if self._unavailable.get(method, 0) > 0:
            self._unavailable[method] -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")

    def abort(self, context: grpc.ServicerContext, error: YtkError) -> None:
        status = to_status(error)
        context.set_trailing_metadata(status.trailing)
        context.abort(status.code, status.details)

    def submit(self, spec: JobSpec, key: str) -> tuple[_Job, str, bool]:
        if key in self._keys:
            job = self._jobs[self._keys[key]]
            return job, job.submission_ids[0], False
        job_id = f"job-{len(self._jobs) + 1}"
        answer = self._answers.get(
            spec.kind,
            Answer(
                failure=Failure(failure_class=FailureClass.OURS, code="no_answer", message="the test gave no answer")
            ),
        )
        job = _Job(
            JobView(id=job_id, spec=spec, state=JobState.QUEUED, submitted_at=NOW, updated_at=NOW),
            [f"sub-{job_id}"],
            answer.log,
        )
        self._jobs[job_id] = job
        self._keys[key] = job_id
        return job, job.submission_ids[0], False

    def find(self, context: grpc.ServicerContext, job_id: str) -> _Job:
        if job_id not in self._jobs:
            self.abort(context, UserError(f"no job {job_id!r}", code="not_found", hint="`ytk jobs list` lists them."))
        return self._jobs[job_id]

    def all_jobs(self) -> list[_Job]:
        return list(reversed(self._jobs.values()))

    def set(self, job: _Job, **changes: Any) -> JobView:
        job.view = msgspec.structs.replace(job.view, **changes)
        return job.view

    def wait_released(self, context: grpc.ServicerContext) -> None:
        with self._go:
            while self._held and context.is_active():
                self._go.wait(0.05)

    def finish(self, job: _Job) -> JobView:
        if job.view.state.terminal:
            return job.view
        answer = self._answers.get(job.view.spec.kind, Answer())
        if answer.failure is not None or answer.work is None:
            failure = answer.failure or Failure(
                failure_class=FailureClass.OURS, code="no_answer", message="the test gave no answer"
            )
            return self.set(job, state=JobState.FAILED, failure=failure)
        inputs = {blob.name: self.blobs[blob.digest] for blob in job.view.spec.inputs}
        outputs, summary = answer.work(job.view.spec, inputs)
        blobs = []
        for name, data in outputs.items():
            digest = digest_bytes(data)
            self.blobs[digest] = data
            blobs.append(NamedBlob(name=name, digest=digest, size_bytes=len(data)))
        return self.set(job, state=JobState.SUCCEEDED, result=JobResult(outputs=tuple(blobs), summary=summary))


class _Jobs(jobs_pb2_grpc.JobServiceServicer):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake

    def SubmitJob(self, request, context):
        self._fake.entered(context, "SubmitJob")
        if self._fake.refuse_submit is not None:
            self._fake.abort(context, self._fake.refuse_submit)
        job, submission, joined = self._fake.submit(convert.job_spec_from_pb(request.spec), request.idempotency_key)
        self._fake.maybe_lose(context, "SubmitJob")
        return jobs_pb2.SubmitJobResponse(job=convert.job_to_pb(job.view), submission_id=submission, joined=joined)

    def GetJob(self, request, context):
        self._fake.entered(context, "GetJob")
        return jobs_pb2.GetJobResponse(job=convert.job_to_pb(self._fake.find(context, request.id).view))

    def ListJobs(self, request, context):
        self._fake.entered(context, "ListJobs")
        states = {convert.job_state_from_pb(state) for state in request.states}
        found = [
            job.view
            for job in self._fake.all_jobs()
            if (not states or job.view.state in states)
            and (not request.parent_id or job.view.parent_id == request.parent_id)
        ]
        return jobs_pb2.ListJobsResponse(jobs=[convert.job_to_pb(view) for view in found[: request.limit or 100]])

    def CancelJob(self, request, context):
        self._fake.entered(context, "CancelJob")
        job = self._fake.find(context, request.id)
        if not job.view.state.terminal:
            self._fake.set(job, state=JobState.CANCELLED)
        self._fake.release()
        return jobs_pb2.CancelJobResponse(job=convert.job_to_pb(job.view))

    def WatchJob(self, request, context) -> Iterator[Any]:
        self._fake.entered(context, "WatchJob")
        job = self._fake.find(context, request.id)
        yield jobs_pb2.WatchJobResponse(job=convert.job_to_pb(job.view))
        if job.view.state.terminal:
            return
        running = self._fake.set(job, state=JobState.RUNNING, worker_id="fake-worker", attempts=1, progress=0.5)
        yield jobs_pb2.WatchJobResponse(job=convert.job_to_pb(running))
        self._fake.wait_released(context)
        if context.is_active():
            yield jobs_pb2.WatchJobResponse(job=convert.job_to_pb(self._fake.finish(job)))

    def ReadLog(self, request, context) -> Iterator[Any]:
        self._fake.entered(context, "ReadLog")
        job = self._fake.find(context, request.id)
        held_back = len(job.log) // 2 if request.follow and not job.view.state.terminal else 0
        for offset in range(request.offset, len(job.log) - held_back, 7):
            end = min(offset + 7, len(job.log) - held_back)
            yield jobs_pb2.ReadLogResponse(data=job.log[offset:end], offset=offset)
        if held_back:
            self._fake.wait_released(context)
            start = max(request.offset, len(job.log) - held_back)
            # One byte too early, as after a lost acknowledgement: the client has to drop what it has.
            start = max(0, start - 1)
            yield jobs_pb2.ReadLogResponse(data=job.log[start:], offset=start)


class _Fleet(fleet_pb2_grpc.FleetServiceServicer):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake

    def GetServerInfo(self, request, context):
        self._fake.entered(context, "GetServerInfo")
        version = convert.peer_version_to_pb(PeerVersion(software="fake"))
        return fleet_pb2.GetServerInfoResponse(version=version, principal="test", scope="client")

    def ListWorkers(self, request, context):
        self._fake.entered(context, "ListWorkers")
        self._fake.maybe_lose(context, "ListWorkers")
        found = [worker for worker in self._fake.workers if request.role in {"", worker.description.role}]
        return fleet_pb2.ListWorkersResponse(workers=[convert.worker_to_pb(worker) for worker in found])

    def DrainWorker(self, request, context):
        self._fake.entered(context, "DrainWorker")
        self._fake.drained.append((request.worker_id, request.reason, request.resume))
        for worker in self._fake.workers:
            if worker.description.worker_id == request.worker_id:
                state = WorkerState.IDLE if request.resume else WorkerState.DRAINING
                return fleet_pb2.DrainWorkerResponse(
                    worker=convert.worker_to_pb(msgspec.structs.replace(worker, state=state))
                )
        self._fake.abort(context, UserError(f"no worker {request.worker_id!r}", code="not_found"))
        return None


class _Artifacts(artifacts_pb2_grpc.ArtifactServiceServicer):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake
        self._parts: dict[str, bytes] = {}

    def FindMissing(self, request, context):
        self._fake.entered(context, "FindMissing")
        return artifacts_pb2.FindMissingResponse(
            missing=[digest for digest in request.digests if digest not in self._fake.blobs]
        )

    def GetWriteStatus(self, request, context):
        self._fake.entered(context, "GetWriteStatus")
        part = self._parts.get(request.digest, b"")
        return artifacts_pb2.GetWriteStatusResponse(
            complete=request.digest in self._fake.blobs, committed_bytes=len(part)
        )

    def WriteArtifact(self, request_iterator, context):
        self._fake.entered(context, "WriteArtifact")
        data, digest = b"", ""
        with contextlib.suppress(grpc.RpcError):
            for message in request_iterator:
                digest = digest or message.digest
                data += message.data
        if digest_bytes(data) != digest:
            self._fake.abort(context, UserError("wrong digest", code="digest_mismatch"))
        self._fake.blobs[digest] = data
        return artifacts_pb2.WriteArtifactResponse(committed_bytes=len(data), complete=True)

    def ReadArtifact(self, request, context) -> Iterator[Any]:
        self._fake.entered(context, "ReadArtifact")
        if request.digest not in self._fake.blobs:
            self._fake.abort(context, UserError(f"no artifact {request.digest}", code="not_found"))
        data = self._fake.blobs[request.digest]
        for start in range(request.offset, max(len(data), request.offset + 1), 65536):
            yield artifacts_pb2.ReadArtifactResponse(data=data[start : start + 65536], size_bytes=len(data))
