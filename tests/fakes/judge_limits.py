"""How long a judge under test waits: for a candidate that never ends one second, for all others as long as any machine needs."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from ytk_gaia.evaluator.session import Limits, Session

PATIENT = Limits(start_s=120.0, call_s=120.0)
BUDGET_S = 1200.0


def end_soon(patch: pytest.MonkeyPatch, module: ModuleType, candidate: str) -> None:
    """Let a judge's module give up on one candidate after a second of a call.

    A short limit for all of them would be a verdict on the machine: an honest kernel of a busy one waits for seconds.
    """

    def session(
        library: Any, task: Any, threads: Any, placement: Any, mode: Any, limits: Limits, *more: Any
    ) -> Session:
        if candidate in library.parts:
            limits = replace(limits, call_s=1.0)
        return Session(library, task, threads, placement, mode, limits, *more)

    patch.setattr(module, "Session", session)
