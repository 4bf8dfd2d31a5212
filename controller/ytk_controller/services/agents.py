"""AgentService."""
# ruff: noqa: D102, N802, ARG002 - the proto names and documents the methods, and gRPC their arguments

from __future__ import annotations

from collections.abc import AsyncIterator

from ytk_controller.interceptors.around import Context
from ytk_controller.live.agent_desk import AgentDesk
from ytk_core import convert
from ytk_core.errors import UserError
from ytk_core.jobs import Failure, JobResult
from ytk_core.workers import AgentMessage
from ytk_proto.v1 import agents_pb2 as pb
from ytk_proto.v1 import agents_pb2_grpc


class AgentServicer(agents_pb2_grpc.AgentServiceServicer):
    """How agents work for the controller."""

    def __init__(self, desk: AgentDesk) -> None:
        self._desk = desk

    async def Connect(
        self, request: AsyncIterator[pb.ConnectRequest], context: Context
    ) -> AsyncIterator[pb.ConnectResponse]:
        async for message in self._desk.connect(_messages(request)):
            yield convert.controller_message_to_pb(message)

    async def StartJob(self, request: pb.StartJobRequest, context: Context) -> pb.StartJobResponse:
        proceed = await self._desk.start(request.worker_id, convert.lease_from_pb(request.lease))
        return pb.StartJobResponse(proceed=proceed)

    async def AppendLog(self, request: pb.AppendLogRequest, context: Context) -> pb.AppendLogResponse:
        length = await self._desk.append_log(convert.lease_from_pb(request.lease), request.offset, request.data)
        return pb.AppendLogResponse(next_offset=length)

    async def ReportProgress(self, request: pb.ReportProgressRequest, context: Context) -> pb.ReportProgressResponse:
        await self._desk.report_progress(convert.lease_from_pb(request.lease), request.fraction, request.note)
        return pb.ReportProgressResponse()

    async def CommitJob(self, request: pb.CommitJobRequest, context: Context) -> pb.CommitJobResponse:
        state = await self._desk.commit(request.worker_id, convert.lease_from_pb(request.lease), _outcome(request))
        return pb.CommitJobResponse(state=convert.job_state_to_pb(state))


async def _messages(requests: AsyncIterator[pb.ConnectRequest]) -> AsyncIterator[AgentMessage]:
    async for request in requests:
        yield convert.agent_message_from_pb(request)


def _outcome(request: pb.CommitJobRequest) -> JobResult | Failure | None:
    match request.WhichOneof("outcome"):
        case "result":
            return convert.job_result_from_pb(request.result)
        case "failure":
            return convert.failure_from_pb(request.failure)
        case "cancelled":
            return None
        case _:
            raise UserError("a commit without outcome", code="bad_message", hint="Send result, failure or cancelled.")
