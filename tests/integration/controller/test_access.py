"""Keys, scopes, health, reflection, unknown errors."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ytk_core.channels import aio_channel
from ytk_core.rpc_errors import from_rpc_error
from ytk_proto.v1 import agents_pb2, common_pb2, fleet_pb2, jobs_pb2

from fakes.store_agents import AGENT_TOKEN, WAIT_S, Peers, Stubs


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), from_rpc_error(caught.value)


@pytest.mark.parametrize("token", [None, "", "not-the-token-of-anyone", AGENT_TOKEN + "x"])
async def test_without_a_known_key_nothing_is_answered(peers: Peers, token) -> None:
    async with aio_channel(peers.address, token) as channel:
        code, err = await refusal(Stubs(channel).fleet.GetServerInfo(fleet_pb2.GetServerInfoRequest(), timeout=WAIT_S))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "YTK_API_KEY" in err.hint
        stream = Stubs(channel).agents.Connect()
        code, _ = await refusal(stream.read())
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_key_may_do_what_its_scope_allows(peers: Peers) -> None:
    info = await peers.agent_stubs.fleet.GetServerInfo(fleet_pb2.GetServerInfoRequest(), timeout=WAIT_S)
    assert (info.principal, info.scope, info.version.protocol) == ("board", "agent", 1)
    code, err = await refusal(peers.agent_stubs.jobs.ListJobs(jobs_pb2.ListJobsRequest(), timeout=WAIT_S))
    assert (code, err.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
    code, _ = await refusal(peers.client.agents.StartJob(agents_pb2.StartJobRequest(), timeout=WAIT_S))
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_health_and_reflection_need_no_key(peers: Peers) -> None:
    async with aio_channel(peers.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "ytk_proto.v1.JobService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = reflection.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="*")]), timeout=WAIT_S
        )
        async for response in stream:
            names = {service.name for service in response.list_services_response.service}
            assert {"ytk_proto.v1.JobService", "ytk_proto.v1.AgentService"} <= names


async def test_another_protocol_is_refused(peers: Peers) -> None:
    request = fleet_pb2.GetServerInfoRequest(version=common_pb2.PeerVersion(protocol=99, software="9.9"))
    _, err = await refusal(peers.client.fleet.GetServerInfo(request, timeout=WAIT_S))
    assert err.code == "protocol_version"
    assert "99" in err.message


async def test_a_job_that_does_not_exist_is_not_found(peers: Peers) -> None:
    for call in (
        peers.client.jobs.GetJob(jobs_pb2.GetJobRequest(id="job-none"), timeout=WAIT_S),
        peers.client.jobs.WatchJob(jobs_pb2.WatchJobRequest(id="job-none")).read(),
        peers.client.jobs.ReadLog(jobs_pb2.ReadLogRequest(id="job-none", follow=True)).read(),
        peers.client.jobs.CancelJob(jobs_pb2.CancelJobRequest(id="job-none"), timeout=WAIT_S),
    ):
        code, err = await refusal(call)
        assert (code, err.code) == (grpc.StatusCode.NOT_FOUND, "not_found")


async def test_an_unexpected_error_is_internal_and_says_nothing_of_the_inside(peers: Peers, monkeypatch) -> None:
    async def broken(*_args):
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(peers.controller.desk, "do", broken)
    code, err = await refusal(peers.client.jobs.GetJob(jobs_pb2.GetJobRequest(id="job-1"), timeout=WAIT_S))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in err.message + err.hint
