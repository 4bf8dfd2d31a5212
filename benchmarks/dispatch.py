"""Dispatch rate and latency with 100 connected agents: ``python -m benchmarks.dispatch``.

100 agents (one asyncio process, no work of their own) hold one stream each to a real controller process with its SQLite
store. Rate: jobs submitted, assigned, started and committed per second with everything queued up. Latency: one job at a
time, from the submit call to the assignment's arrival. Peer in the same run: bare unary calls to the same process (health
check) with the same number of callers, which is what this machine's gRPC can do at all.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ytk_core.channels import aio_channel
from ytk_proto.v1 import agents_pb2, agents_pb2_grpc, common_pb2, jobs_pb2, jobs_pb2_grpc

from benchmarks._controller import Server, controller
from benchmarks._report import show

AGENTS = 100
JOBS = 1000
SINGLE = 200
CALLERS = 16


class Agent:
    """The least that is an agent: claims, starts, commits."""

    def __init__(self, number: int, server: Server, arrived: dict[str, float]) -> None:
        self.worker_id = f"bench-{number}"
        self.server = server
        self.arrived = arrived
        self.done = 0
        self.outbox: asyncio.Queue[agents_pb2.ConnectRequest] = asyncio.Queue()
        self.welcome = asyncio.Event()

    def claim(self) -> None:
        """Offer the slot."""
        self.outbox.put_nowait(agents_pb2.ConnectRequest(claim=agents_pb2.Claim(claim_id=uuid.uuid4().hex)))

    async def run(self, finished: asyncio.Queue[str]) -> None:
        """Serve until cancelled."""
        async with aio_channel(self.server.address, self.server.agent_token) as channel:
            stub = agents_pb2_grpc.AgentServiceStub(channel)
            description = agents_pb2.WorkerDescription(
                worker_id=self.worker_id,
                role="forge",
                kinds=["plugin.build"],
                arch_specs=["amd64-cpuv2-linux-glibc236-ov20264"],
                slots=1,
                hostname="bench",
                version=common_pb2.PeerVersion(protocol=1, software="bench"),
                sandbox="none",
            )
            hello = agents_pb2.Hello(worker=description, session_id=uuid.uuid4().hex)
            self.outbox.put_nowait(agents_pb2.ConnectRequest(hello=hello))
            self.claim()
            beat = asyncio.create_task(self.beat(), name="beat")
            try:
                async for response in stub.Connect(self.requests()):
                    if response.HasField("welcome"):
                        self.welcome.set()
                    if response.HasField("assignment"):
                        lease = response.assignment.lease
                        self.arrived[lease.job_id] = time.perf_counter()
                        await stub.StartJob(agents_pb2.StartJobRequest(lease=lease, worker_id=self.worker_id))
                        await stub.CommitJob(
                            agents_pb2.CommitJobRequest(
                                lease=lease, worker_id=self.worker_id, result=common_pb2.JobResult(summary_json="{}")
                            )
                        )
                        self.claim()
                        finished.put_nowait(lease.job_id)
            finally:
                beat.cancel()

    async def requests(self):
        """Give what the outbox gets, for ever."""
        while True:
            yield await self.outbox.get()

    async def beat(self) -> None:
        """Heartbeat every 10 s, as a real agent does."""
        for sequence in range(1, 1_000_000):
            await asyncio.sleep(10)
            self.outbox.put_nowait(
                agents_pb2.ConnectRequest(heartbeat=agents_pb2.Heartbeat(sequence=sequence, leases=[]))
            )


def job(number: int) -> jobs_pb2.SubmitJobRequest:
    """Make a job that differs from all others, so that nothing is joined or cached."""
    spec = common_pb2.JobSpec(
        kind="plugin.build",
        schema_version=1,
        arch_spec="amd64-cpuv2-linux-glibc236-ov20264",
        params_json="{}",
        no_cache=True,
        inputs=[],
    )
    spec.wall_limit.FromSeconds(60 + number)
    version = common_pb2.PeerVersion(protocol=1, software="bench")
    return jobs_pb2.SubmitJobRequest(spec=spec, idempotency_key=uuid.uuid4().hex, version=version)


async def bare_calls(server: Server) -> float:
    """Give health checks per second with CALLERS callers for 3 s."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        count = 0
        end = time.perf_counter() + 3.0

        async def caller() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await stub.Check(health_pb2.HealthCheckRequest())
                count += 1

        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(caller())
        return count / (time.perf_counter() - start)


async def measure(server: Server) -> list[dict[str, object]]:
    """Run the three measurements."""
    arrived: dict[str, float] = {}
    finished: asyncio.Queue[str] = asyncio.Queue()
    agents = [Agent(number, server, arrived) for number in range(AGENTS)]
    running = [asyncio.create_task(agent.run(finished), name=agent.worker_id) for agent in agents]
    await asyncio.wait_for(asyncio.gather(*(agent.welcome.wait() for agent in agents)), 60)
    async with aio_channel(server.address, server.client_token) as channel:
        stub = jobs_pb2_grpc.JobServiceStub(channel)
        latencies = []
        for number in range(SINGLE):
            start = time.perf_counter()
            answer = await stub.SubmitJob(job(number))
            await finished.get()
            latencies.append((arrived[answer.job.id] - start) * 1e3)
        numbers = iter(range(JOBS))

        async def submitter() -> None:
            for number in numbers:
                await stub.SubmitJob(job(1000 + number))

        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(submitter())
        submitted = time.perf_counter() - start
        for _ in range(JOBS):
            await finished.get()
        total = time.perf_counter() - start
    bare = await bare_calls(server)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    latencies.sort()
    # A job costs three unary calls (submit, start, commit) and three stream messages.
    calls = 3 * JOBS / total
    return [
        {"figure": "jobs/s, submit to commit", "value": JOBS / total},
        {"figure": "jobs/s accepted while agents work", "value": JOBS / submitted},
        {"figure": "submit -> assignment p50 ms", "value": statistics.median(latencies)},
        {"figure": "submit -> assignment p99 ms", "value": latencies[int(0.99 * len(latencies))]},
        {"figure": "peer: bare unary calls/s on the same process", "value": bare},
        {"figure": "ratio: our unary calls/s to bare ones", "value": calls / bare},
        {"figure": "controller peak MiB", "value": server.peak_mib()},
    ]


def main() -> None:
    """Start a controller and measure."""
    with tempfile.TemporaryDirectory() as scratch, controller(Path(scratch)) as server:
        rows = asyncio.run(measure(server))
    show(f"Dispatch with {AGENTS} connected agents, SQLite", rows)


if __name__ == "__main__":
    main()
