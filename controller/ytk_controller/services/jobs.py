"""JobService."""
# ruff: noqa: D102, N802, ARG002 - the proto names and documents the methods, and gRPC their arguments

from __future__ import annotations

from collections.abc import AsyncIterator

from ytk_controller.interceptors.around import Context
from ytk_controller.jobs.model import view
from ytk_controller.jobs.submitting import SubmitRequest
from ytk_controller.live.agent_desk import check_protocol
from ytk_controller.live.desk import CALLER
from ytk_controller.live.job_desk import JobDesk
from ytk_core import convert
from ytk_proto.v1 import jobs_pb2 as pb
from ytk_proto.v1 import jobs_pb2_grpc


class JobServicer(jobs_pb2_grpc.JobServiceServicer):
    """Jobs as clients use them."""

    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: Context) -> pb.SubmitJobResponse:
        answer = await self._desk.submit(_submit_request(request))
        return pb.SubmitJobResponse(
            job=convert.job_to_pb(view(answer.job)), submission_id=answer.submission_id, joined=answer.joined
        )

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        job = await self._desk.get(request.id)
        return pb.GetJobResponse(job=convert.job_to_pb(view(job)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        states = {convert.job_state_from_pb(state) for state in request.states}
        jobs = await self._desk.list(
            states=states, parent_id=request.parent_id, limit=request.limit, before_id=request.before_id
        )
        return pb.ListJobsResponse(jobs=[convert.job_to_pb(view(job)) for job in jobs])

    async def CancelJob(self, request: pb.CancelJobRequest, context: Context) -> pb.CancelJobResponse:
        job = await self._desk.cancel(request.id, request.submission_id)
        return pb.CancelJobResponse(job=convert.job_to_pb(view(job)))

    async def WatchJob(self, request: pb.WatchJobRequest, context: Context) -> AsyncIterator[pb.WatchJobResponse]:
        async for job in self._desk.watch(request.id):
            yield pb.WatchJobResponse(job=convert.job_to_pb(view(job)))

    async def ReadLog(self, request: pb.ReadLogRequest, context: Context) -> AsyncIterator[pb.ReadLogResponse]:
        async for offset, data in self._desk.read_log(request.id, request.offset, follow=request.follow):
            yield pb.ReadLogResponse(offset=offset, data=data)


def _submit_request(request: pb.SubmitJobRequest) -> SubmitRequest:
    check_protocol(convert.peer_version_from_pb(request.version))
    return SubmitRequest(
        spec=convert.job_spec_from_pb(request.spec),
        principal=CALLER.get().name,
        idempotency_key=request.idempotency_key,
        parent_id=request.parent_id,
        parent_fence=request.parent_fence,
    )
