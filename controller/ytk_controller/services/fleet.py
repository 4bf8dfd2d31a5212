"""FleetService."""
# ruff: noqa: D102, N802, ARG002 - the proto names and documents the methods, and gRPC their arguments

from __future__ import annotations

from ytk_controller.interceptors.around import Context
from ytk_controller.live.agent_desk import check_protocol, own_version
from ytk_controller.live.desk import CALLER
from ytk_controller.live.fleet_desk import FleetDesk
from ytk_core import convert
from ytk_proto.v1 import fleet_pb2 as pb
from ytk_proto.v1 import fleet_pb2_grpc


class FleetServicer(fleet_pb2_grpc.FleetServiceServicer):
    """Workers as clients and operators see them."""

    def __init__(self, desk: FleetDesk) -> None:
        self._desk = desk

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        workers = await self._desk.list(role=request.role, include_lost=request.include_lost)
        return pb.ListWorkersResponse(workers=[convert.worker_to_pb(worker) for worker in workers])

    async def DrainWorker(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        worker = await self._desk.drain(request.worker_id, request.reason, resume=request.resume)
        return pb.DrainWorkerResponse(worker=convert.worker_to_pb(worker))

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        check_protocol(convert.peer_version_from_pb(request.version))
        caller = CALLER.get()
        return pb.GetServerInfoResponse(
            version=convert.peer_version_to_pb(own_version()), principal=caller.name, scope=caller.scope
        )
