"""Turn protobuf messages into the frozen structs of :mod:`ytk_core.jobs` and :mod:`ytk_core.workers`, and back.

protobuf types stop here: servicers and stubs convert at their edge. ``*_from_pb`` raises UserError with code
``bad_message`` (``unknown_kind`` for a job kind) where a peer sends what the words do not allow.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ytk_core import jobs, workers
from ytk_core.errors import FailureClass, UserError, YtkError
from ytk_proto.v1 import agents_pb2, common_pb2, fleet_pb2

_E = TypeVar("_E", bound=enum.Enum)

_JOB_STATES: dict[common_pb2.JobState.ValueType, jobs.JobState] = {
    common_pb2.JobState.Value(f"JOB_STATE_{state.name}"): state for state in jobs.JobState
}
_JOB_STATES_PB = {state: value for value, state in _JOB_STATES.items()}
_FAILURE_CLASSES: dict[common_pb2.FailureClass.ValueType, FailureClass] = {
    common_pb2.FailureClass.Value(f"FAILURE_CLASS_{cls.name}"): cls for cls in FailureClass
}
_FAILURE_CLASSES_PB = {cls: value for value, cls in _FAILURE_CLASSES.items()}
_WORKER_STATES: dict[fleet_pb2.WorkerState.ValueType, workers.WorkerState] = {
    fleet_pb2.WorkerState.Value(f"WORKER_STATE_{state.name}"): state for state in workers.WorkerState
}
_WORKER_STATES_PB = {state: value for value, state in _WORKER_STATES.items()}
_LEASE_ACTIONS: dict[agents_pb2.LeaseAction.ValueType, workers.LeaseAction] = {
    agents_pb2.LeaseAction.Value(f"LEASE_ACTION_{action.name}"): action for action in workers.LeaseAction
}
_LEASE_ACTIONS_PB = {action: value for value, action in _LEASE_ACTIONS.items()}

_json = msgspec.json.Encoder(order="deterministic")


def _bad(message: str, *, code: str = "bad_message", hint: str = "") -> UserError:
    return UserError(message, code=code, hint=hint or "The peer speaks another version; update the older side.")


def _known(table: Mapping[Any, _E], value: Any, what: str) -> _E:
    try:
        return table[value]
    except KeyError:
        raise _bad(f"unknown {what}: {value}") from None


def _json_object(text: str, what: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as err:
        raise _bad(f"{what} is not a JSON object: {err}", hint=f"Send {what} as a JSON object.") from err


def duration_to_pb(seconds: float) -> Duration:
    """Give seconds as a Duration."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def duration_from_pb(duration: Duration) -> float:
    """Give a Duration in seconds."""
    return duration.ToNanoseconds() / 1e9


def timestamp_to_pb(moment: datetime) -> Timestamp:
    """Give an aware datetime as a Timestamp."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def timestamp_from_pb(stamp: Timestamp) -> datetime:
    """Give a Timestamp as an aware datetime in UTC."""
    return stamp.ToDatetime(tzinfo=UTC)


def job_state_to_pb(state: jobs.JobState) -> common_pb2.JobState.ValueType:
    """Give a job state's enum value."""
    return _JOB_STATES_PB[state]


def job_state_from_pb(value: common_pb2.JobState.ValueType) -> jobs.JobState:
    """Give the job state of an enum value."""
    return _known(_JOB_STATES, value, "job state")


def blob_to_pb(blob: jobs.NamedBlob) -> common_pb2.NamedBlob:
    """Convert a named blob."""
    return common_pb2.NamedBlob(name=blob.name, digest=blob.digest, size_bytes=blob.size_bytes)


def blob_from_pb(pb: common_pb2.NamedBlob) -> jobs.NamedBlob:
    """Convert a named blob; the digest's form is not checked here."""
    return jobs.NamedBlob(name=pb.name, digest=pb.digest, size_bytes=pb.size_bytes)


def failure_to_pb(failure: jobs.Failure) -> common_pb2.Failure:
    """Convert a failure."""
    return common_pb2.Failure(
        failure_class=_FAILURE_CLASSES_PB[failure.failure_class],
        code=failure.code,
        message=failure.message,
        hint=failure.hint,
    )


def failure_from_pb(pb: common_pb2.Failure) -> jobs.Failure:
    """Convert a failure."""
    return jobs.Failure(
        failure_class=_known(_FAILURE_CLASSES, pb.failure_class, "failure class"),
        code=pb.code,
        message=pb.message,
        hint=pb.hint,
    )


def failure_of(err: YtkError) -> jobs.Failure:
    """Give the failure that an error stands for."""
    return jobs.Failure(failure_class=err.failure_class, code=err.code, message=err.message, hint=err.hint)


def job_spec_to_pb(spec: jobs.JobSpec) -> common_pb2.JobSpec:
    """Convert a job spec; equal specs give equal ``params_json``."""
    return common_pb2.JobSpec(
        kind=spec.kind,
        schema_version=spec.schema_version,
        arch_spec=spec.arch_spec,
        inputs=[blob_to_pb(blob) for blob in spec.inputs],
        params_json=_json.encode(spec.params).decode(),
        requirements=spec.requirements,
        wall_limit=duration_to_pb(spec.wall_limit_s),
        measuring=spec.measuring,
        priority=spec.priority,
        no_cache=spec.no_cache,
    )


def job_spec_from_pb(pb: common_pb2.JobSpec) -> jobs.JobSpec:
    """Convert a job spec; a missing wall limit is the default one.

    Raises:
        UserError: Unknown kind, parameters that are no JSON object, or a wall limit that is not positive.
    """
    try:
        kind = jobs.JobKind(pb.kind)
    except ValueError:
        raise _bad(
            f"unknown job kind {pb.kind!r}",
            code="unknown_kind",
            hint=f"Known kinds: {', '.join(jobs.JobKind)}.",
        ) from None
    fields: dict[str, Any] = {}
    if pb.HasField("wall_limit"):
        fields["wall_limit_s"] = duration_from_pb(pb.wall_limit)
        if fields["wall_limit_s"] <= 0:
            raise _bad(f"wall_limit is {fields['wall_limit_s']} s", hint="Give a positive wall limit.")
    return jobs.JobSpec(
        kind=kind,
        schema_version=pb.schema_version or 1,
        arch_spec=pb.arch_spec,
        inputs=tuple(blob_from_pb(blob) for blob in pb.inputs),
        params=_json_object(pb.params_json, "params_json"),
        requirements=tuple(pb.requirements),
        measuring=pb.measuring,
        priority=pb.priority,
        no_cache=pb.no_cache,
        **fields,
    )


def job_result_to_pb(result: jobs.JobResult) -> common_pb2.JobResult:
    """Convert a job's result."""
    return common_pb2.JobResult(
        outputs=[blob_to_pb(blob) for blob in result.outputs],
        summary_json=_json.encode(result.summary).decode(),
    )


def job_result_from_pb(pb: common_pb2.JobResult) -> jobs.JobResult:
    """Convert a job's result."""
    return jobs.JobResult(
        outputs=tuple(blob_from_pb(blob) for blob in pb.outputs),
        summary=_json_object(pb.summary_json, "summary_json"),
    )


def job_to_pb(job: workers.JobView) -> common_pb2.Job:
    """Convert a job view."""
    return common_pb2.Job(
        id=job.id,
        spec=job_spec_to_pb(job.spec),
        state=job_state_to_pb(job.state),
        failure=None if job.failure is None else failure_to_pb(job.failure),
        result=None if job.result is None else job_result_to_pb(job.result),
        parent_id=job.parent_id,
        worker_id=job.worker_id,
        attempts=job.attempts,
        submitted_at=None if job.submitted_at is None else timestamp_to_pb(job.submitted_at),
        updated_at=None if job.updated_at is None else timestamp_to_pb(job.updated_at),
        submitters=job.submitters,
        from_cache=job.from_cache,
        progress=job.progress,
        progress_note=job.progress_note,
    )


def job_from_pb(pb: common_pb2.Job) -> workers.JobView:
    """Convert a job view."""
    return workers.JobView(
        id=pb.id,
        spec=job_spec_from_pb(pb.spec),
        state=job_state_from_pb(pb.state),
        failure=failure_from_pb(pb.failure) if pb.HasField("failure") else None,
        result=job_result_from_pb(pb.result) if pb.HasField("result") else None,
        parent_id=pb.parent_id,
        worker_id=pb.worker_id,
        attempts=pb.attempts,
        submitted_at=timestamp_from_pb(pb.submitted_at) if pb.HasField("submitted_at") else None,
        updated_at=timestamp_from_pb(pb.updated_at) if pb.HasField("updated_at") else None,
        submitters=pb.submitters,
        from_cache=pb.from_cache,
        progress=pb.progress if math.isfinite(pb.progress) else 0.0,
        progress_note=pb.progress_note,
    )


def peer_version_to_pb(version: workers.PeerVersion) -> common_pb2.PeerVersion:
    """Convert a peer's version."""
    return common_pb2.PeerVersion(protocol=version.protocol, software=version.software)


def peer_version_from_pb(pb: common_pb2.PeerVersion) -> workers.PeerVersion:
    """Convert a peer's version; whether we speak its protocol is the caller's question."""
    return workers.PeerVersion(protocol=pb.protocol, software=pb.software)


def worker_description_to_pb(worker: workers.WorkerDescription) -> agents_pb2.WorkerDescription:
    """Convert a worker description."""
    return agents_pb2.WorkerDescription(
        worker_id=worker.worker_id,
        role=worker.role,
        kinds=worker.kinds,
        arch_specs=worker.arch_specs,
        capabilities=worker.capabilities,
        device_uid=worker.device_uid,
        device_name=worker.device_name,
        slots=worker.slots,
        hostname=worker.hostname,
        version=peer_version_to_pb(worker.version),
        sandbox=worker.sandbox,
    )


def worker_description_from_pb(pb: agents_pb2.WorkerDescription) -> workers.WorkerDescription:
    """Convert a worker description; job kinds that this software does not know are left out (it has no such jobs)."""
    if not pb.worker_id:
        raise _bad("a worker without worker_id")
    known = set(jobs.JobKind)
    return workers.WorkerDescription(
        worker_id=pb.worker_id,
        role=pb.role,
        kinds=tuple(jobs.JobKind(kind) for kind in pb.kinds if kind in known),
        arch_specs=tuple(pb.arch_specs),
        capabilities=tuple(pb.capabilities),
        device_uid=pb.device_uid,
        device_name=pb.device_name,
        slots=pb.slots,
        hostname=pb.hostname,
        version=peer_version_from_pb(pb.version),
        sandbox=pb.sandbox,
    )


def worker_to_pb(worker: workers.WorkerView) -> fleet_pb2.Worker:
    """Convert a worker view."""
    return fleet_pb2.Worker(
        description=worker_description_to_pb(worker.description),
        state=_WORKER_STATES_PB[worker.state],
        last_seen_at=timestamp_to_pb(worker.last_seen_at),
        job_ids=worker.job_ids,
    )


def worker_from_pb(pb: fleet_pb2.Worker) -> workers.WorkerView:
    """Convert a worker view."""
    return workers.WorkerView(
        description=worker_description_from_pb(pb.description),
        state=_known(_WORKER_STATES, pb.state, "worker state"),
        last_seen_at=timestamp_from_pb(pb.last_seen_at),
        job_ids=tuple(pb.job_ids),
    )


def lease_to_pb(lease: jobs.Lease) -> agents_pb2.Lease:
    """Convert a lease."""
    return agents_pb2.Lease(job_id=lease.job_id, fence=lease.fence)


def lease_from_pb(pb: agents_pb2.Lease) -> jobs.Lease:
    """Convert a lease."""
    return jobs.Lease(job_id=pb.job_id, fence=pb.fence)


def verdict_to_pb(verdict: workers.LeaseVerdict) -> agents_pb2.LeaseVerdict:
    """Convert a verdict on a lease."""
    return agents_pb2.LeaseVerdict(lease=lease_to_pb(verdict.lease), action=_LEASE_ACTIONS_PB[verdict.action])


def verdict_from_pb(pb: agents_pb2.LeaseVerdict) -> workers.LeaseVerdict:
    """Convert a verdict on a lease."""
    return workers.LeaseVerdict(lease=lease_from_pb(pb.lease), action=_known(_LEASE_ACTIONS, pb.action, "lease action"))


def agent_message_to_pb(message: workers.AgentMessage) -> agents_pb2.ConnectRequest:
    """Convert a message of an agent's session."""
    match message:
        case workers.Hello():
            hello = agents_pb2.Hello(
                worker=worker_description_to_pb(message.worker),
                session_id=message.session_id,
                running=[lease_to_pb(lease) for lease in message.running],
            )
            return agents_pb2.ConnectRequest(hello=hello)
        case workers.Heartbeat():
            heartbeat = agents_pb2.Heartbeat(
                sequence=message.sequence, leases=[lease_to_pb(lease) for lease in message.leases]
            )
            return agents_pb2.ConnectRequest(heartbeat=heartbeat)
        case workers.Claim():
            return agents_pb2.ConnectRequest(claim=agents_pb2.Claim(claim_id=message.claim_id))


def agent_message_from_pb(pb: agents_pb2.ConnectRequest) -> workers.AgentMessage:
    """Convert a message of an agent's session; a kind of message that is not known is ``bad_message``."""
    match pb.WhichOneof("message"):
        case "hello":
            return workers.Hello(
                worker=worker_description_from_pb(pb.hello.worker),
                session_id=pb.hello.session_id,
                running=tuple(lease_from_pb(lease) for lease in pb.hello.running),
            )
        case "heartbeat":
            return workers.Heartbeat(
                sequence=pb.heartbeat.sequence, leases=tuple(lease_from_pb(lease) for lease in pb.heartbeat.leases)
            )
        case "claim":
            return workers.Claim(claim_id=pb.claim.claim_id)
        case _:
            raise _bad("a session message of an unknown kind")


def controller_message_to_pb(message: workers.ControllerMessage) -> agents_pb2.ConnectResponse:
    """Convert an answer or push of the controller."""
    match message:
        case workers.Welcome():
            welcome = agents_pb2.Welcome(
                heartbeat_interval=duration_to_pb(message.heartbeat_interval_s),
                lease_duration=duration_to_pb(message.lease_duration_s),
                version=peer_version_to_pb(message.version),
                verdicts=[verdict_to_pb(verdict) for verdict in message.verdicts],
            )
            return agents_pb2.ConnectResponse(welcome=welcome)
        case workers.HeartbeatAck():
            ack = agents_pb2.HeartbeatAck(
                sequence=message.sequence, verdicts=[verdict_to_pb(verdict) for verdict in message.verdicts]
            )
            return agents_pb2.ConnectResponse(heartbeat_ack=ack)
        case workers.Assignment():
            assignment = agents_pb2.Assignment(
                claim_id=message.claim_id, lease=lease_to_pb(message.lease), spec=job_spec_to_pb(message.spec)
            )
            return agents_pb2.ConnectResponse(assignment=assignment)
        case workers.LeaseVerdict():
            return agents_pb2.ConnectResponse(verdict=verdict_to_pb(message))
        case workers.Drain():
            return agents_pb2.ConnectResponse(drain=agents_pb2.Drain(reason=message.reason))


def controller_message_from_pb(pb: agents_pb2.ConnectResponse) -> workers.ControllerMessage | None:
    """Convert an answer or push of the controller; None for a kind that a newer controller added."""
    match pb.WhichOneof("message"):
        case "welcome":
            return workers.Welcome(
                heartbeat_interval_s=duration_from_pb(pb.welcome.heartbeat_interval),
                lease_duration_s=duration_from_pb(pb.welcome.lease_duration),
                version=peer_version_from_pb(pb.welcome.version),
                verdicts=tuple(verdict_from_pb(verdict) for verdict in pb.welcome.verdicts),
            )
        case "heartbeat_ack":
            return workers.HeartbeatAck(
                sequence=pb.heartbeat_ack.sequence,
                verdicts=tuple(verdict_from_pb(verdict) for verdict in pb.heartbeat_ack.verdicts),
            )
        case "assignment":
            return workers.Assignment(
                claim_id=pb.assignment.claim_id,
                lease=lease_from_pb(pb.assignment.lease),
                spec=job_spec_from_pb(pb.assignment.spec),
            )
        case "verdict":
            return verdict_from_pb(pb.verdict)
        case "drain":
            return workers.Drain(reason=pb.drain.reason)
        case _:
            return None
