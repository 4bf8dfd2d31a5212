"""Workers, jobs as others see them, and the messages of an agent's session."""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, JobState, Lease

PROTOCOL_VERSION = 1
"""Version of ``ytk_proto.v1`` that this software speaks."""


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


EMULATED = "emulated"
"""Capability ``emulated==<arch spec>``: kernels for it are judged without its device."""
TARGET_VERIFIED = "target_verified"
"""Capability ``target_verified==<arch spec>``: plugins for it are built against the target's own headers, and not marked."""


class PeerVersion(_Frozen, frozen=True, kw_only=True):
    """Software that speaks."""

    protocol: int = PROTOCOL_VERSION
    software: str = ""


class WorkerState(enum.StrEnum):
    """What a worker is doing."""

    IDLE = "IDLE"
    BUSY = "BUSY"
    DRAINING = "DRAINING"
    LOST = "LOST"


class WorkerDescription(_Frozen, frozen=True, kw_only=True):
    """What an agent says about itself.

    ``arch_specs`` holds every arch spec that it can serve, best first. ``device_uid`` names the physical device that
    measuring jobs hold; empty where the agent never measures. ``sandbox`` is ``"bubblewrap"`` or ``"none"``.
    """

    worker_id: str
    role: str
    kinds: tuple[JobKind, ...] = ()
    arch_specs: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    device_uid: str = ""
    device_name: str = ""
    slots: int = 1
    hostname: str = ""
    version: PeerVersion = PeerVersion()
    sandbox: str = "none"


class WorkerView(_Frozen, frozen=True, kw_only=True):
    """A worker as clients and operators see it."""

    description: WorkerDescription
    state: WorkerState
    last_seen_at: datetime
    job_ids: tuple[str, ...] = ()


class JobView(_Frozen, frozen=True, kw_only=True):
    """A job as clients and parent jobs see it.

    ``failure`` is set in a terminal state other than SUCCEEDED, ``result`` in SUCCEEDED. Times are aware, in UTC.
    """

    id: str
    spec: JobSpec
    state: JobState
    failure: Failure | None = None
    result: JobResult | None = None
    parent_id: str = ""
    worker_id: str = ""
    attempts: int = 0
    submitted_at: datetime | None = None
    updated_at: datetime | None = None
    submitters: int = 1
    from_cache: bool = False
    progress: float = 0.0
    progress_note: str = ""


# ---- the messages of an agent's session ------------------------------------------------------------------------------


class Hello(_Frozen, frozen=True, kw_only=True):
    """First message of an agent. Leases of this worker that are not in ``running`` are lost at once."""

    worker: WorkerDescription
    session_id: str
    running: tuple[Lease, ...] = ()


class Heartbeat(_Frozen, frozen=True, kw_only=True):
    """Sign of life of the agent and renewal of the leases that it names."""

    sequence: int
    leases: tuple[Lease, ...] = ()


class Claim(_Frozen, frozen=True, kw_only=True):
    """A free slot. Repeating one ``claim_id`` gives the same job again."""

    claim_id: str


class LeaseAction(enum.StrEnum):
    """What an agent does with a lease."""

    CONTINUE = "CONTINUE"
    CANCEL = "CANCEL"
    ABANDON = "ABANDON"


class LeaseVerdict(_Frozen, frozen=True, kw_only=True):
    """The controller's word on one lease."""

    lease: Lease
    action: LeaseAction


class Welcome(_Frozen, frozen=True, kw_only=True):
    """Answer to Hello; ``verdicts`` answer each lease of ``Hello.running``."""

    heartbeat_interval_s: float
    lease_duration_s: float
    version: PeerVersion = PeerVersion()
    verdicts: tuple[LeaseVerdict, ...] = ()


class HeartbeatAck(_Frozen, frozen=True, kw_only=True):
    """Answer to Heartbeat."""

    sequence: int
    verdicts: tuple[LeaseVerdict, ...] = ()


class Assignment(_Frozen, frozen=True, kw_only=True):
    """A job for the slot that ``claim_id`` offered."""

    claim_id: str
    lease: Lease
    spec: JobSpec


class Drain(_Frozen, frozen=True, kw_only=True):
    """Stop soon: finish what runs, claim nothing."""

    reason: str = ""


AgentMessage = Hello | Heartbeat | Claim
ControllerMessage = Welcome | HeartbeatAck | Assignment | LeaseVerdict | Drain
