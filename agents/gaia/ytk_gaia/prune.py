"""What need not be measured: candidates that another one beats on paper. Pure.

Deliberately timid. Two figures are known without running anything: the bytes that the loops of a candidate read and write, and
how often their bodies run. A candidate goes out only where another one is not worse in either and far better in one, with the
same schedule and dialect, so that what is compared differs in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MUCH_MEMORY, _MUCH_WORK = 4.0, 16.0
"""How many times more memory traffic or work is hopeless. Caches forgive traffic up to a point, vector units forgive work."""


@dataclass(frozen=True)
class Estimate:
    """Figures of one candidate.

    Attributes:
        id: The candidate.
        traffic_bytes: Read and written by all its loops, every access counted once per element; None where unknown.
        iterations: How often the bodies of its loops run; None where unknown.
        like: What has to be equal for two candidates to be comparable: schedule and dialect.
        parallel: How many outer loops are shared out among threads.
        form: All that decides its text besides ``parallel``.
    """

    id: str
    traffic_bytes: int | None
    iterations: int | None
    like: tuple[Any, ...]
    parallel: int
    form: tuple[Any, ...]


def prune(estimates: Sequence[Estimate], *, threads: int, keep: str = "") -> dict[str, str]:
    """Give the candidates that are not worth a measurement, with the reason.

    Args:
        estimates: All candidates, in order.
        threads: That kernels are measured with; 0: many.
        keep: Stays in any case: the reference.
    """
    out: dict[str, str] = {}
    for one in estimates:
        if one.id == keep:
            continue
        reason = _idle_threads(one, estimates, out) if threads == 1 else ""
        reason = reason or next(
            (text for other in estimates if (text := _beaten(one, other)) and other.id not in out), ""
        )
        if reason:
            out[one.id] = reason
    return out


def _idle_threads(one: Estimate, estimates: Sequence[Estimate], out: dict[str, str]) -> str:
    """On one thread, shared-out loops are the plain loops and a team that has to be started."""
    plain = [e for e in estimates if e.form == one.form and e.parallel < one.parallel and e.id not in out]
    return f"with one thread it is {plain[-1].id} and a team of threads" if one.parallel and plain else ""


def _beaten(one: Estimate, other: Estimate) -> str:
    if other.id == one.id or other.like != one.like:
        return ""
    if None in {one.traffic_bytes, one.iterations, other.traffic_bytes, other.iterations}:
        return ""
    assert one.traffic_bytes is not None
    assert one.iterations is not None
    assert other.traffic_bytes is not None
    assert other.iterations is not None
    if other.traffic_bytes > one.traffic_bytes or other.iterations > one.iterations:
        return ""
    if one.traffic_bytes > _MUCH_MEMORY * other.traffic_bytes:
        return f"moves {one.traffic_bytes} bytes where {other.id} moves {other.traffic_bytes}, with no less work"
    if one.iterations > _MUCH_WORK * other.iterations:
        return f"does {one.iterations} steps where {other.id} does {other.iterations}, with no less memory traffic"
    return ""
