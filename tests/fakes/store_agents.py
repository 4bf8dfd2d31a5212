"""Peers of a controller for its integration tests: a client's stubs, and agents whose every message the test sends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from ytk_core import convert
from ytk_core.channels import aio_channel
from ytk_core.digests import digest_bytes
from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, Lease, NamedBlob
from ytk_core.workers import (
    Assignment,
    Claim,
    ControllerMessage,
    Heartbeat,
    Hello,
    JobView,
    PeerVersion,
    Welcome,
    WorkerDescription,
)
from ytk_proto.v1 import (
    agents_pb2,
    agents_pb2_grpc,
    artifacts_pb2,
    artifacts_pb2_grpc,
    fleet_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
)

CLIENT_TOKEN = "client-token-of-the-tests"
AGENT_TOKEN = "agent-token-of-the-tests"
WAIT_S = 120.0
"""For what comes at once on an idle machine; only a hang meets it."""
MIB = 1 << 20


class Stubs:
    """All services over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.jobs: Any = jobs_pb2_grpc.JobServiceStub(channel)
        self.artifacts: Any = artifacts_pb2_grpc.ArtifactServiceStub(channel)
        self.agents: Any = agents_pb2_grpc.AgentServiceStub(channel)
        self.fleet: Any = fleet_pb2_grpc.FleetServiceStub(channel)


class FakeAgent:
    """An agent that does only what the test says."""

    def __init__(self, stubs: Stubs, worker: WorkerDescription, session_id: str) -> None:
        self._stubs = stubs
        self.worker = worker
        self.session_id = session_id
        self._claims = itertools.count(1)
        self._sequence = itertools.count(1)
        self._stream: Any = None

    async def connect(self, *running: Lease) -> Welcome:
        self._stream = self._stubs.agents.Connect()
        await self.send(Hello(worker=self.worker, session_id=self.session_id, running=running))
        welcome = await self.receive()
        assert isinstance(welcome, Welcome)
        return welcome

    async def disconnect(self) -> None:
        self._stream.cancel()

    async def send(self, message: Hello | Heartbeat | Claim) -> None:
        await self._stream.write(convert.agent_message_to_pb(message))

    async def receive(self, timeout_s: float = WAIT_S) -> ControllerMessage:
        async with asyncio.timeout(timeout_s):
            pb = await self._stream.read()
        assert pb is not grpc.aio.EOF, "the controller ended the session"
        message = convert.controller_message_from_pb(pb)
        assert message is not None
        return message

    async def receive_nothing(self) -> None:
        """Heartbeat, and see that its answer is the next message."""
        sequence = next(self._sequence)
        await self.send(Heartbeat(sequence=sequence))
        message = await self.receive()
        assert getattr(message, "sequence", None) == sequence, message

    async def claim(self, claim_id: str = "") -> str:
        claim_id = claim_id or f"{self.session_id}-{next(self._claims)}"
        await self.send(Claim(claim_id=claim_id))
        return claim_id

    async def take(self) -> Assignment:
        await self.claim()
        message = await self.receive()
        assert isinstance(message, Assignment), message
        return message

    async def heartbeat(self, *leases: Lease) -> Any:
        await self.send(Heartbeat(sequence=next(self._sequence), leases=leases))
        return await self.receive()

    async def start(self, lease: Lease) -> bool:
        request = agents_pb2.StartJobRequest(lease=convert.lease_to_pb(lease), worker_id=self.worker.worker_id)
        return (await self._stubs.agents.StartJob(request, timeout=WAIT_S)).proceed

    async def log(self, lease: Lease, offset: int, data: bytes) -> int:
        request = agents_pb2.AppendLogRequest(lease=convert.lease_to_pb(lease), offset=offset, data=data)
        return (await self._stubs.agents.AppendLog(request, timeout=WAIT_S)).next_offset

    async def progress(self, lease: Lease, fraction: float, note: str) -> None:
        request = agents_pb2.ReportProgressRequest(lease=convert.lease_to_pb(lease), fraction=fraction, note=note)
        await self._stubs.agents.ReportProgress(request, timeout=WAIT_S)

    async def commit(self, lease: Lease, outcome: JobResult | Failure | None) -> str:
        request = agents_pb2.CommitJobRequest(lease=convert.lease_to_pb(lease), worker_id=self.worker.worker_id)
        if isinstance(outcome, JobResult):
            request.result.CopyFrom(convert.job_result_to_pb(outcome))
        elif outcome is not None:
            request.failure.CopyFrom(convert.failure_to_pb(outcome))
        else:
            request.cancelled = True
        response = await self._stubs.agents.CommitJob(request, timeout=WAIT_S)
        return str(convert.job_state_from_pb(response.state))


class Peers:
    """A client and any number of agents of one controller."""

    def __init__(self, address: str, client: Stubs, agent: Stubs) -> None:
        self.address = address
        self.client = client
        self.agent_stubs = agent
        self.controller: Any = None

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str) -> AsyncIterator[Peers]:
        async with aio_channel(address, CLIENT_TOKEN) as client, aio_channel(address, AGENT_TOKEN) as agent:
            yield cls(address, Stubs(client), Stubs(agent))

    def agent(self, worker_id: str = "w1", *, session_id: str = "", **facts: Any) -> FakeAgent:
        return FakeAgent(self.agent_stubs, worker(worker_id, **facts), session_id or f"{worker_id}-s1")

    async def submit(
        self, spec: JobSpec | None = None, *, key: str = "", stubs: Stubs | None = None, parent: Lease | None = None
    ) -> jobs_pb2.SubmitJobResponse:
        request = jobs_pb2.SubmitJobRequest(
            spec=convert.job_spec_to_pb(spec or job_spec()),
            idempotency_key=key,
            parent_id=parent.job_id if parent else "",
            parent_fence=parent.fence if parent else 0,
        )
        return await (stubs or self.client).jobs.SubmitJob(request, timeout=WAIT_S)

    async def job(self, job_id: str) -> JobView:
        response = await self.client.jobs.GetJob(jobs_pb2.GetJobRequest(id=job_id), timeout=WAIT_S)
        return convert.job_from_pb(response.job)

    async def upload(self, data: bytes, *, offset: int = 0, digest: str = "", until: int | None = None) -> Any:
        digest = digest or digest_bytes(data)
        requests = write_requests(digest, data, offset, until)
        return await self.client.artifacts.WriteArtifact(requests, timeout=WAIT_S)

    async def result(self, **outputs: bytes) -> JobResult:
        blobs = []
        for name, data in outputs.items():
            await self.upload(data)
            blobs.append(NamedBlob(name=name, digest=digest_bytes(data), size_bytes=len(data)))
        return JobResult(outputs=tuple(blobs), summary={"outputs": len(blobs)})


async def write_requests(
    digest: str, data: bytes, offset: int = 0, until: int | None = None
) -> AsyncIterator[artifacts_pb2.WriteArtifactRequest]:
    """The messages of an upload from an offset on; ``until`` stops before the end."""
    yield artifacts_pb2.WriteArtifactRequest(digest=digest, size_bytes=len(data), offset=offset)
    for start in range(offset, len(data) if until is None else until, MIB):
        yield artifacts_pb2.WriteArtifactRequest(data=data[start : start + MIB])


def worker(worker_id: str = "w1", **facts: Any) -> WorkerDescription:
    """A worker that takes plugin builds, unless told otherwise."""
    defaults: dict[str, Any] = {
        "role": "forge",
        "kinds": (JobKind.PLUGIN_BUILD,),
        "arch_specs": ("amd64-cpuv3-linux-glibc236-ov20264",),
        "version": PeerVersion(software="test"),
    }
    return WorkerDescription(worker_id=worker_id, **(defaults | facts))


def job_spec(number: int = 0, **fields: Any) -> JobSpec:
    """A plugin build; different numbers make different jobs."""
    return JobSpec(**({"kind": JobKind.PLUGIN_BUILD, "params": {"number": number}} | fields))
