"""A controller for tests of the agent runtime: real servicers in the test's loop, answers and faults as the test says.

::

    async with FakeController() as fake:
        job = fake.queue_job(JobSpec(kind=JobKind.PLUGIN_BUILD))
        ...                                        # an agent connects to fake.address
        assert (await job.committed()).summary == {...}

By default every call works: hello is welcomed, each claim gets the next queued job, leases go on, blobs are stored.
Faults (``fail``, ``answer``) wait for their call and have to be used: leaving the context with one unused fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import grpc
import grpc.aio
import msgspec

from ytk_core import convert
from ytk_core.channels import aio_server_options
from ytk_core.digests import digest_bytes
from ytk_core.errors import BoardError, UserError, YtkError
from ytk_core.jobs import Failure, JobResult, JobSpec, JobState, Lease, NamedBlob
from ytk_core.rpc_errors import OffsetError, to_status
from ytk_core.workers import (
    Assignment,
    Claim,
    Drain,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobView,
    LeaseAction,
    LeaseVerdict,
    Welcome,
)
from ytk_proto.v1 import agents_pb2 as pb
from ytk_proto.v1 import agents_pb2_grpc, artifacts_pb2, artifacts_pb2_grpc, jobs_pb2, jobs_pb2_grpc

WAIT_S = 120.0
"""For what comes at once on an idle machine; only a hang meets it."""
TOKEN = "agent-token-of-the-tests"


class FakeJob:
    """A job as the fake controller sees it."""

    def __init__(self, job_id: str, spec: JobSpec) -> None:
        self.id = job_id
        self.spec = spec
        self.fence = 0
        self.state = JobState.QUEUED
        self.log = b""
        self.progress: list[tuple[float, str]] = []
        self.started = asyncio.Event()
        self.start_calls = 0
        self.commits: list[JobResult | Failure | None] = []
        self.parent: tuple[str, int] | None = None
        self.changed = asyncio.Condition()
        self._done = asyncio.Event()

    @property
    def lease(self) -> Lease:
        return Lease(job_id=self.id, fence=self.fence)

    async def outcome(self) -> JobResult | Failure | None:
        """Wait for the commit and give what it said; None: cancelled."""
        async with asyncio.timeout(WAIT_S):
            await self._done.wait()
        return self.commits[0]

    async def committed(self) -> JobResult:
        outcome = await self.outcome()
        assert isinstance(outcome, JobResult), outcome
        return outcome

    async def failed(self) -> Failure:
        outcome = await self.outcome()
        assert isinstance(outcome, Failure), outcome
        return outcome

    async def wait_started(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.started.wait()

    async def wait_log(self, text: bytes) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: text in self.log)

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def view(self) -> JobView:
        last = self.commits[-1] if self.commits else None
        return JobView(
            id=self.id,
            spec=self.spec,
            state=self.state,
            result=last if isinstance(last, JobResult) else None,
            failure=last if isinstance(last, Failure) else None,
        )

    def end(self, outcome: JobResult | Failure | None) -> None:
        self.commits.append(outcome)
        match outcome:
            case JobResult():
                self.state = JobState.SUCCEEDED
            case Failure():
                self.state = JobState.FAILED
            case None:
                self.state = JobState.CANCELLED
        self._done.set()


class Fault(msgspec.Struct, kw_only=True):
    """What happens to one call instead of, or after, its work."""

    error: YtkError | None = None
    status: grpc.StatusCode | None = None
    after: bool = False
    """The work is done and only its answer is lost."""
    hold: asyncio.Event | None = None
    """The call waits for this first."""


class FakeController:
    """State, faults and the server."""

    def __init__(self, *, heartbeat_s: float = 0.05, lease_s: float = 5.0, token: str | None = None) -> None:
        self.heartbeat_s = heartbeat_s
        self.lease_s = lease_s
        self.token = token
        self.jobs: dict[str, FakeJob] = {}
        self.blobs: dict[str, bytes] = {}
        self.parts: dict[str, bytearray] = {}
        self.received_bytes = 0
        self.hellos: list[Hello] = []
        self.heartbeats: list[Heartbeat] = []
        self.claims: list[Claim] = []
        self.calls: list[str] = []
        self.verdicts: dict[Lease, LeaseAction] = {}
        self.lose_assignments = 0
        """So many assignments are given and their messages lost, together with the stream."""
        self.drop_after_welcome = 0
        """So many streams are welcomed and cut at once."""
        self.cut_upload_after: int | None = None
        """The next upload stream breaks after so many bytes, once."""
        self.cut_download_after: int | None = None
        self.acknowledge = True
        self._given: dict[str, Assignment] = {}
        self._queue: deque[FakeJob] = deque()
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._streams: list[_Stream] = []
        self._numbers = itertools.count(1)
        self._news = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self._port = 0

    # ---- the test's side ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.stop()
        unused = {method: len(faults) for method, faults in self._faults.items() if faults}
        if kind is None:
            assert not unused, f"faults that no call met: {unused}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def reserve_port(self) -> str:
        """Give the address before anything listens there."""
        await self.start()
        await self.stop()
        return self.address

    async def start(self) -> None:
        """Listen; after :meth:`stop`, on the same port."""
        server = grpc.aio.server(options=aio_server_options(), interceptors=[_Auth(self)])
        agents_pb2_grpc.add_AgentServiceServicer_to_server(_Agents(self), server)
        artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server(_Artifacts(self), server)
        jobs_pb2_grpc.add_JobServiceServicer_to_server(_Jobs(self), server)
        self._port = server.add_insecure_port(f"127.0.0.1:{self._port}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Cut all connections."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def queue_job(self, spec: JobSpec, *, inputs: dict[str, bytes] | None = None) -> FakeJob:
        """Put a job in the queue; its inputs are stored."""
        blobs = tuple(self.store(name, data) for name, data in (inputs or {}).items())
        job = FakeJob(f"job-{next(self._numbers)}", msgspec.structs.replace(spec, inputs=(*spec.inputs, *blobs)))
        self.jobs[job.id] = job
        self._queue.append(job)
        self._dispatch()
        return job

    def store(self, name: str, data: bytes) -> NamedBlob:
        digest = digest_bytes(data)
        self.blobs[digest] = data
        return NamedBlob(name=name, digest=digest, size_bytes=len(data))

    def fail(self, method: str, error: YtkError, *, times: int = 1) -> None:
        """Let the next calls of a method be refused."""
        self._faults[method].extend(Fault(error=error) for _ in range(times))

    def lose(self, method: str, *, times: int = 1) -> None:
        """Let the next calls of a method do their work and lose the answer."""
        self._faults[method].extend(Fault(status=grpc.StatusCode.UNAVAILABLE, after=True) for _ in range(times))

    def hold(self, method: str) -> asyncio.Event:
        """Let the next call of a method wait until the event is set."""
        event = asyncio.Event()
        self._faults[method].append(Fault(hold=event))
        return event

    def drop_streams(self, error: YtkError | None = None) -> None:
        """Cut the sessions that are open."""
        for stream in self._streams:
            stream.end(error or BoardError("cut by the test", code="unavailable"))

    def push(self, message: LeaseVerdict | Drain) -> None:
        """Send to every session."""
        for stream in self._streams:
            stream.send(message)

    def cancel(self, job: FakeJob) -> None:
        """Cancel as a controller does: remembered, and pushed at once."""
        job.state = JobState.CANCELLING
        self.verdicts[job.lease] = LeaseAction.CANCEL
        self.push(LeaseVerdict(lease=job.lease, action=LeaseAction.CANCEL))

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait until something that the agents do makes a condition true."""
        try:
            async with asyncio.timeout(WAIT_S), self._news:
                await self._news.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"did not happen: {what}; calls: {self.calls[-20:]}") from None

    # ---- the servicers' side -----------------------------------------------------------------------------------------

    async def note(self, call: str) -> None:
        self.calls.append(call)
        async with self._news:
            self._news.notify_all()

    @asynccontextmanager
    async def serving(
        self, method: str, context: Any, hear_out: AsyncIterator[Any] | None = None
    ) -> AsyncIterator[None]:
        """Wrap one call with its faults and turn errors into statuses.

        A stream is heard out before it is refused, as a real controller does: grpc.aio loses the status where it still writes.
        """
        faults = self._faults[method]
        fault = faults.popleft() if faults else Fault()
        await self.note(method)
        try:
            if fault.hold is not None:
                await fault.hold.wait()
            if fault.error is not None:
                async for _ in hear_out or _nothing():
                    pass
                raise fault.error
            if fault.status is not None and not fault.after:
                await context.abort(fault.status, "fault of the test")
            yield
        except YtkError as err:
            status = to_status(err)
            await context.abort(status.code, status.details, status.trailing)
        if fault.after and fault.status is not None:
            await self.note(f"{method} lost")
            await context.abort(fault.status, "answer lost by the test")

    def job_of(self, lease: Lease) -> FakeJob:
        job = self.jobs.get(lease.job_id)
        if job is None or job.fence != lease.fence:
            raise UserError(f"lease {lease} is stale", code="stale_lease")
        return job

    def _dispatch(self) -> None:
        for stream in self._streams:
            while stream.claims and not stream.draining:
                job = next((job for job in self._queue if job.spec.kind in stream.kinds), None)
                if job is None:
                    break
                self._queue.remove(job)
                claim_id = stream.claims.popleft()
                job.fence += 1
                job.state = JobState.LEASED
                assignment = Assignment(claim_id=claim_id, lease=job.lease, spec=job.spec)
                self._given[claim_id] = assignment
                if self.lose_assignments:
                    self.lose_assignments -= 1
                    stream.end(BoardError("cut by the test", code="unavailable"))
                    break
                stream.send(assignment)

    async def answer(self, stream: _Stream, message: Hello | Heartbeat | Claim) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                stream.kinds = frozenset(message.worker.kinds)
                verdicts = tuple(self._verdict(lease) for lease in message.running)
                stream.send(
                    Welcome(heartbeat_interval_s=self.heartbeat_s, lease_duration_s=self.lease_s, verdicts=verdicts)
                )
                if self.drop_after_welcome:
                    self.drop_after_welcome -= 1
                    stream.end(BoardError("cut by the test", code="unavailable"))
            case Heartbeat():
                self.heartbeats.append(message)
                verdicts = tuple(self._verdict(lease) for lease in message.leases)
                if self.acknowledge:
                    stream.send(HeartbeatAck(sequence=message.sequence, verdicts=verdicts))
            case Claim():
                self.claims.append(message)
                again = self._given.get(message.claim_id)
                if again is not None:
                    stream.send(again)
                else:
                    stream.claims.append(message.claim_id)
                    self._dispatch()
        await self.note(type(message).__name__)

    def _verdict(self, lease: Lease) -> LeaseVerdict:
        job = self.jobs.get(lease.job_id)
        action = LeaseAction.CONTINUE
        if job is None or job.fence != lease.fence:
            action = LeaseAction.ABANDON
        return LeaseVerdict(lease=lease, action=self.verdicts.get(lease, action))

    def opened(self, stream: _Stream) -> None:
        self._streams.append(stream)

    def closed(self, stream: _Stream) -> None:
        self._streams.remove(stream)


async def _nothing() -> AsyncIterator[Any]:
    return
    yield


class _Stream:
    def __init__(self) -> None:
        self.claims: deque[str] = deque()
        self.kinds: frozenset[str] = frozenset()
        self.draining = False
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        if isinstance(message, Drain):
            self.draining = True
        self._outbox.put_nowait(message)

    def end(self, error: YtkError | None) -> None:
        self._outbox.put_nowait(error)

    async def messages(self) -> AsyncIterator[Any]:
        while (message := await self._outbox.get()) is not None:
            if isinstance(message, YtkError):
                raise message
            yield message


class _Auth(grpc.aio.ServerInterceptor):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        if self._fake.token is not None:
            presented = dict(details.invocation_metadata or ()).get("authorization")
            if presented != f"Bearer {self._fake.token}":
                status = to_status(UserError("no such token", code="unauthenticated", hint="Check the token file."))

                async def refuse(_request: Any, context: Any) -> None:
                    await context.abort(status.code, status.details, status.trailing)

                handler = await continuation(details)
                if handler.request_streaming and handler.response_streaming:
                    return grpc.stream_stream_rpc_method_handler(refuse)
                return grpc.unary_unary_rpc_method_handler(refuse)
        return await continuation(details)


class _Agents(agents_pb2_grpc.AgentServiceServicer):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake

    async def Connect(self, request: Any, context: Any) -> AsyncIterator[pb.ConnectResponse]:
        fake = self._fake
        stream = _Stream()
        async with fake.serving("Connect", context):
            fake.opened(stream)

            async def listen() -> None:
                async for message in request:
                    await fake.answer(stream, convert.agent_message_from_pb(message))
                stream.end(None)

            reader = asyncio.create_task(listen(), name="fake-reader")
            try:
                async for message in stream.messages():
                    yield convert.controller_message_to_pb(message)
            finally:
                fake.closed(stream)
                reader.cancel()
                await asyncio.wait({reader})
                await fake.note("stream closed")

    async def StartJob(self, request: pb.StartJobRequest, context: Any) -> pb.StartJobResponse:
        async with self._fake.serving("StartJob", context):
            job = self._fake.job_of(convert.lease_from_pb(request.lease))
            job.start_calls += 1
            proceed = job.state is not JobState.CANCELLING
            if proceed:
                job.state = JobState.RUNNING
            job.started.set()
        return pb.StartJobResponse(proceed=proceed)

    async def AppendLog(self, request: pb.AppendLogRequest, context: Any) -> pb.AppendLogResponse:
        async with self._fake.serving("AppendLog", context):
            job = self._fake.job_of(convert.lease_from_pb(request.lease))
            if request.offset > len(job.log):
                raise OffsetError("a gap in the log", code="log_gap", offset=len(job.log))
            fresh = request.data[len(job.log) - request.offset :]
            job.log += fresh
            await job.notify()
        return pb.AppendLogResponse(next_offset=len(job.log))

    async def ReportProgress(self, request: pb.ReportProgressRequest, context: Any) -> pb.ReportProgressResponse:
        async with self._fake.serving("ReportProgress", context):
            job = self._fake.job_of(convert.lease_from_pb(request.lease))
            job.progress.append((request.fraction, request.note))
            await job.notify()
        return pb.ReportProgressResponse()

    async def CommitJob(self, request: pb.CommitJobRequest, context: Any) -> pb.CommitJobResponse:
        outcomes: dict[str, Any] = {
            "result": lambda: convert.job_result_from_pb(request.result),
            "failure": lambda: convert.failure_from_pb(request.failure),
            "cancelled": lambda: None,
        }
        async with self._fake.serving("CommitJob", context):
            job = self._fake.job_of(convert.lease_from_pb(request.lease))
            outcome = outcomes[str(request.WhichOneof("outcome"))]()
            if isinstance(outcome, JobResult):
                lacking = [blob.name for blob in outcome.outputs if blob.digest not in self._fake.blobs]
                if lacking:
                    raise UserError(f"outputs {lacking} are not in the store", code="output_missing")
            job.end(outcome)
        await self._fake.note("committed")
        return pb.CommitJobResponse(state=convert.job_state_to_pb(job.state))


class _Artifacts(artifacts_pb2_grpc.ArtifactServiceServicer):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake

    async def FindMissing(self, request: Any, context: Any) -> artifacts_pb2.FindMissingResponse:
        async with self._fake.serving("FindMissing", context):
            missing = [digest for digest in request.digests if digest not in self._fake.blobs]
        return artifacts_pb2.FindMissingResponse(missing=missing)

    async def GetWriteStatus(self, request: Any, context: Any) -> artifacts_pb2.GetWriteStatusResponse:
        fake = self._fake
        async with fake.serving("GetWriteStatus", context):
            whole = fake.blobs.get(request.digest)
            committed = len(fake.parts.get(request.digest, b"")) if whole is None else len(whole)
        return artifacts_pb2.GetWriteStatusResponse(complete=whole is not None, committed_bytes=committed)

    async def WriteArtifact(self, request: Any, context: Any) -> artifacts_pb2.WriteArtifactResponse:
        fake = self._fake
        async with fake.serving("WriteArtifact", context, hear_out=request):
            first = await anext(request)
            part = fake.parts.setdefault(first.digest, bytearray())
            if first.offset != len(part):
                raise OffsetError("wrong offset", code="write_offset", offset=len(part))
            await self._take(part, first.data)
            async for message in request:
                await self._take(part, message.data)
            complete = len(part) == first.size_bytes
            if complete:
                data = bytes(fake.parts.pop(first.digest))
                if digest_bytes(data) != first.digest:
                    raise UserError("these are other bytes", code="digest_mismatch")
                fake.blobs[first.digest] = data
        return artifacts_pb2.WriteArtifactResponse(committed_bytes=len(part), complete=complete)

    async def _take(self, part: bytearray, data: bytes) -> None:
        fake = self._fake
        assert len(data) <= 1 << 20
        part += data
        fake.received_bytes += len(data)
        if fake.cut_upload_after is not None and len(part) >= fake.cut_upload_after:
            fake.cut_upload_after = None
            raise BoardError("cut by the test", code="unavailable")

    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[artifacts_pb2.ReadArtifactResponse]:
        fake = self._fake
        async with fake.serving("ReadArtifact", context):
            if request.digest not in fake.blobs:
                raise UserError(f"no blob {request.digest}", code="not_found")
            data = fake.blobs[request.digest]
            yield artifacts_pb2.ReadArtifactResponse(size_bytes=len(data))
            for start in range(request.offset, len(data), 1 << 20):
                if fake.cut_download_after is not None and start >= fake.cut_download_after:
                    fake.cut_download_after = None
                    raise BoardError("cut by the test", code="unavailable")
                yield artifacts_pb2.ReadArtifactResponse(data=data[start : start + (1 << 20)])


class _Jobs(jobs_pb2_grpc.JobServiceServicer):
    def __init__(self, fake: FakeController) -> None:
        self._fake = fake
        self._keys: dict[str, FakeJob] = {}

    async def SubmitJob(self, request: jobs_pb2.SubmitJobRequest, context: Any) -> jobs_pb2.SubmitJobResponse:
        async with self._fake.serving("SubmitJob", context):
            job = self._keys.get(request.idempotency_key)
            if job is None:
                job = self._keys[request.idempotency_key] = self._fake.queue_job(convert.job_spec_from_pb(request.spec))
                job.parent = (request.parent_id, request.parent_fence)
        return jobs_pb2.SubmitJobResponse(job=convert.job_to_pb(job.view()))

    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        async with self._fake.serving("WatchJob", context):
            job = self._fake.jobs[request.id]
            yield jobs_pb2.WatchJobResponse(job=convert.job_to_pb(job.view()))
            if not job.state.terminal:
                await job._done.wait()
                yield jobs_pb2.WatchJobResponse(job=convert.job_to_pb(job.view()))

    async def CancelJob(self, request: Any, context: Any) -> jobs_pb2.CancelJobResponse:
        async with self._fake.serving("CancelJob", context):
            job = self._fake.jobs[request.id]
            self._fake.cancel(job)
        return jobs_pb2.CancelJobResponse(job=convert.job_to_pb(job.view()))
