"""What time does to jobs: leases that run out, controllers that come back, workers that stay away."""

from __future__ import annotations

from ytk_controller.jobs.events import ControllerReturned, GivenUp, LeaseExpired
from ytk_controller.jobs.submitting import remembered_workers
from ytk_controller.jobs.turn import Turn
from ytk_controller.scheduling.satisfiable import explain_unsatisfiable
from ytk_core.errors import FailureClass
from ytk_core.jobs import Failure


def reap(turn: Turn) -> int:
    """End the attempts whose lease is over.

    Returns:
        How many there were.
    """
    expired = turn.tx.expired_jobs()
    for job in expired:
        turn.apply(job, LeaseExpired(now=turn.now, cause_id=turn.cause_id))
    return len(expired)


def give_up(turn: Turn) -> int:
    """Fail jobs that wait although no worker that could take them was seen for ``worker_memory_s``.

    Returns:
        How many there were.
    """
    workers = remembered_workers(turn)
    given_up = 0
    for job in turn.tx.queued_jobs():
        if turn.now - job.updated_at < turn.policy.worker_memory_s:
            continue
        err = explain_unsatisfiable(job.spec, workers)
        if err is None:
            continue
        failure = Failure(
            failure_class=FailureClass.BOARDS, code=err.code, message=f"Waited in vain: {err.message}.", hint=err.hint
        )
        turn.apply(job, GivenUp(now=turn.now, cause_id=turn.cause_id, failure=failure))
        given_up += 1
    return given_up


def controller_returned(turn: Turn) -> int:
    """Give agents a whole lease's time to reconnect after a controller was away.

    Returns:
        How many jobs are held.
    """
    held = turn.tx.open_jobs()
    for job in held:
        turn.apply(job, ControllerReturned(now=turn.now, cause_id=turn.cause_id))
    return len(held)
