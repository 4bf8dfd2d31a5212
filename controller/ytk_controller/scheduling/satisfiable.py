"""Why a job could never be given to anybody: said at submit, with what comes nearest."""

from __future__ import annotations

from collections.abc import Iterable

from ytk_controller.scheduling.scheduler import matches
from ytk_core.archspec import ArchSpec, nearest
from ytk_core.errors import UserError, YtkError
from ytk_core.jobs import JobSpec
from ytk_core.workers import WorkerDescription


class UnsatisfiableError(UserError):
    """No worker that is known could ever take the job."""

    default_code = "unsatisfiable"


def explain_unsatisfiable(spec: JobSpec, workers: Iterable[WorkerDescription]) -> UnsatisfiableError | None:
    """Say why no worker could take a job.

    Args:
        spec: The job.
        workers: Every worker that is known, also busy ones.

    Returns:
        None where a worker could take it; else the reason: nobody serves the kind, nobody has the arch spec (names
        the nearest one and the fields that differ), or a requirement is not met (names what the workers have).
    """
    known = sorted(workers, key=lambda worker: worker.worker_id)
    if any(matches(worker, spec) for worker in known):
        return None
    serving = [worker for worker in known if spec.kind in worker.kinds]
    if not serving:
        return UnsatisfiableError(
            f"no worker takes jobs of the kind {spec.kind}",
            hint=f"Start an agent for it (`ytk up` starts them all). Connected now: {_names(known)}.",
        )
    if spec.arch_spec:
        having = [worker for worker in serving if spec.arch_spec in worker.arch_specs]
        if not having:
            return _no_arch_spec(spec, serving)
        serving = having
    return _no_requirement(spec, serving)


def _no_arch_spec(spec: JobSpec, serving: list[WorkerDescription]) -> UnsatisfiableError:
    existing = _parsed({text for worker in serving for text in worker.arch_specs})
    found = nearest(ArchSpec.parse(spec.arch_spec), existing)
    if found is None:
        return UnsatisfiableError(
            f"no worker has the arch spec {spec.arch_spec}",
            hint=f"The workers that take {spec.kind} advertise no arch spec at all: {_names(serving)}.",
        )
    other, fields = found
    wanted = ArchSpec.parse(spec.arch_spec)
    differing = ", ".join(f"{name} ({getattr(wanted, name)}, the worker has {getattr(other, name)})" for name in fields)
    return UnsatisfiableError(
        f"no worker has the arch spec {spec.arch_spec}; the nearest is {other}, which differs in {differing}",
        hint=f"Use `-a {other}`, or start an agent on a target with {spec.arch_spec}. See `ytk embedded workers`.",
    )


def _no_requirement(spec: JobSpec, serving: list[WorkerDescription]) -> UnsatisfiableError:
    wanted = set(spec.requirements)
    closest = min(serving, key=lambda worker: (len(wanted - set(worker.capabilities)), worker.worker_id))
    missing = sorted(wanted - set(closest.capabilities))
    told = "; ".join(f"{need} ({_what_it_has(need, closest)})" for need in missing)
    return UnsatisfiableError(
        f"no worker for {spec.kind} meets all requirements; {closest.worker_id} comes nearest and lacks {told}",
        hint="Match the versions on your side, or start an agent that has them. See `ytk eval workers`.",
    )


def _what_it_has(need: str, worker: WorkerDescription) -> str:
    name = need.partition("==")[0]
    same = [one for one in worker.capabilities if one.partition("==")[0] == name]
    return f"it has {', '.join(sorted(same))}" if same else f"it has no {name}"


def _parsed(texts: set[str]) -> list[ArchSpec]:
    parsed = []
    for text in sorted(texts):
        try:
            parsed.append(ArchSpec.parse(text))
        except YtkError:
            continue  # a newer agent's spec: it cannot be the nearest of anything we understand
    return parsed


def _names(workers: list[WorkerDescription]) -> str:
    return ", ".join(f"{worker.worker_id} ({worker.role})" for worker in workers) or "nobody"
