from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ytk_core import convert
from ytk_core.errors import FailureClass, UserError
from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, JobState, Lease, NamedBlob
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
    PeerVersion,
    Welcome,
    WorkerDescription,
    WorkerState,
    WorkerView,
)
from ytk_proto.v1 import agents_pb2, common_pb2

BLOB = NamedBlob(name="plugins/Col2im.so", digest="blake3:" + "ab" * 32, size_bytes=2**40)
SPEC = JobSpec(
    kind=JobKind.ENGINE_BUILD,
    arch_spec="amd64-cpuv3-linux-glibc236-ov20264",
    inputs=(BLOB,),
    params={"precision": "fp32", "nested": {"b": [1, 2.5, None], "a": "é"}},
    requirements=("engine==openvino",),
    wall_limit_s=12.25,
    measuring=True,
    priority=-3,
    no_cache=True,
    schema_version=2,
)
FAILURE = Failure(failure_class=FailureClass.CANDIDATES, code="wrong_value", message="m", hint="h")
RESULT = JobResult(outputs=(BLOB,), summary={"mean_ms": 1.5})
LEASE = Lease(job_id="j1", fence=2**40)
WORKER = WorkerDescription(
    worker_id="w",
    role="kronos",
    kinds=(JobKind.ENGINE_BUILD, JobKind.ENGINE_VERIFY),
    arch_specs=("a", "b"),
    capabilities=("engine==openvino",),
    device_uid="cpu:1",
    device_name="cpu",
    slots=3,
    hostname="h",
    version=PeerVersion(protocol=7, software="0.9"),
    sandbox="bubblewrap",
)
MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)


def test_job_spec_round_trip() -> None:
    assert convert.job_spec_from_pb(convert.job_spec_to_pb(SPEC)) == SPEC


def test_equal_params_give_equal_json() -> None:
    one = convert.job_spec_to_pb(JobSpec(kind=JobKind.PLUGIN_BUILD, params={"a": 1, "b": 2}))
    two = convert.job_spec_to_pb(JobSpec(kind=JobKind.PLUGIN_BUILD, params={"b": 2, "a": 1}))
    assert one.params_json == two.params_json


def test_default_spec_round_trip() -> None:
    spec = JobSpec(kind=JobKind.WORKER_HEALTH)
    assert convert.job_spec_from_pb(convert.job_spec_to_pb(spec)) == spec
    assert convert.job_spec_from_pb(common_pb2.JobSpec(kind="worker.health")) == spec


@pytest.mark.parametrize(
    "job",
    [
        JobView(id="j", spec=SPEC, state=JobState.FAILED, failure=FAILURE, parent_id="p", attempts=2),
        JobView(id="j", spec=SPEC, state=JobState.SUCCEEDED, result=RESULT, from_cache=True, submitters=2),
        JobView(id="j", spec=SPEC, state=JobState.RUNNING, submitted_at=MOMENT, updated_at=MOMENT, progress=0.5),
    ],
)
def test_job_round_trip(job: JobView) -> None:
    assert convert.job_from_pb(convert.job_to_pb(job)) == job


@pytest.mark.parametrize("state", list(JobState))
def test_every_job_state(state: JobState) -> None:
    assert convert.job_state_from_pb(convert.job_state_to_pb(state)) is state


@pytest.mark.parametrize("cls", list(FailureClass))
def test_every_failure_class(cls: FailureClass) -> None:
    failure = Failure(failure_class=cls, code="c", message="m")
    assert convert.failure_from_pb(convert.failure_to_pb(failure)) == failure


@pytest.mark.parametrize("state", list(WorkerState))
def test_worker_round_trip(state: WorkerState) -> None:
    worker = WorkerView(description=WORKER, state=state, last_seen_at=MOMENT, job_ids=("a", "b"))
    assert convert.worker_from_pb(convert.worker_to_pb(worker)) == worker


def test_a_newer_workers_unknown_kind_is_left_out() -> None:
    pb = convert.worker_description_to_pb(WORKER)
    pb.kinds.append("kernel.dream")
    assert convert.worker_description_from_pb(pb) == WORKER


@pytest.mark.parametrize(
    "message",
    [
        Hello(worker=WORKER, session_id="s", running=(LEASE,)),
        Heartbeat(sequence=3, leases=(LEASE,)),
        Claim(claim_id="c"),
    ],
)
def test_agent_message_round_trip(message: Hello | Heartbeat | Claim) -> None:
    assert convert.agent_message_from_pb(convert.agent_message_to_pb(message)) == message


VERDICTS = tuple(LeaseVerdict(lease=LEASE, action=action) for action in LeaseAction)


@pytest.mark.parametrize(
    "message",
    [
        Welcome(heartbeat_interval_s=0.25, lease_duration_s=30, version=PeerVersion(software="1"), verdicts=VERDICTS),
        HeartbeatAck(sequence=4, verdicts=VERDICTS),
        Assignment(claim_id="c", lease=LEASE, spec=SPEC),
        VERDICTS[2],
        Drain(reason="update"),
    ],
)
def test_controller_message_round_trip(message: Welcome) -> None:
    assert convert.controller_message_from_pb(convert.controller_message_to_pb(message)) == message


def test_a_newer_controllers_message_is_ignored_and_an_agents_refused() -> None:
    assert convert.controller_message_from_pb(agents_pb2.ConnectResponse()) is None
    with pytest.raises(UserError, match="unknown kind"):
        convert.agent_message_from_pb(agents_pb2.ConnectRequest())


@pytest.mark.parametrize(
    ("pb", "code", "text"),
    [
        (common_pb2.JobSpec(kind="engine.paint"), "unknown_kind", "engine.paint"),
        (common_pb2.JobSpec(kind="engine.build", params_json="[1]"), "bad_message", "params_json"),
        (common_pb2.JobSpec(kind="engine.build", params_json="{"), "bad_message", "params_json"),
        (
            common_pb2.JobSpec(kind="engine.build", wall_limit=convert.duration_to_pb(-1)),
            "bad_message",
            "wall_limit",
        ),
    ],
)
def test_bad_specs_are_refused(pb: common_pb2.JobSpec, code: str, text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        convert.job_spec_from_pb(pb)
    assert caught.value.code == code
    assert caught.value.hint


def test_unspecified_enums_are_refused() -> None:
    with pytest.raises(UserError, match="job state"):
        convert.job_state_from_pb(common_pb2.JobState.JOB_STATE_UNSPECIFIED)
    with pytest.raises(UserError, match="failure class"):
        convert.failure_from_pb(common_pb2.Failure(code="c"))
