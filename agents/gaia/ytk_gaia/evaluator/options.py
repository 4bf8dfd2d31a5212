"""How an evaluation is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ytk_core.sandbox import SandboxMode
from ytk_gaia.evaluator.compiled import Compiled
from ytk_gaia.evaluator.session import Limits


def _silent(_fraction: float, _note: str) -> None:
    return


@dataclass(frozen=True)
class JudgeOptions:
    """How to evaluate.

    Attributes:
        budget_s: When to stop measuring.
        threads: CPU threads per kernel; 0: all that this process may use.
        mode: Whether a sandbox is required.
        limits: How long to wait for a candidate.
        worker_id: For the conditions.
        device_uid: For the conditions.
        baseline: Id of the candidate that all others are compared with; empty: none.
        rates: Record of this machine's memory rates (:mod:`.machine_rates`); None: this moment's alone.
        compiled: Libraries that were compiled before; None: every candidate is compiled.
        in_full: Whether every candidate is measured in full, however slow; otherwise those that a first look shows far behind are not.
        progress: Told the share that is done, and the best so far.
    """

    budget_s: float = 60.0
    threads: int = 0
    mode: SandboxMode = "required"
    limits: Limits = field(default_factory=Limits)
    worker_id: str = ""
    device_uid: str = ""
    baseline: str = ""
    rates: Path | None = None
    compiled: Compiled | None = None
    in_full: bool = False
    progress: Callable[[float, str], None] = _silent
