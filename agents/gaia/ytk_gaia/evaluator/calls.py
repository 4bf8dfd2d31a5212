"""A call of a kernel and what came of it: ordinary ones, and those that no contract covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ytk_gaia.evaluator import candidate_runner

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """One call of the kernel.

    Attributes:
        inner_ns: Wall time by the process's own clock.
        outer_ns: Wall time by the judge's clock, with everything around the call.
        cpu_ns: Processor time of all threads, with everything around the call; None where the kernel does not say.
        idle_ns: Processor time since the call before, while the process had nothing to do; 0 where the kernel does not say, or
            where none was before.
        outputs: As copied aside right after the call.
        poison: Byte that filled the outputs before the call; -1: none.
        waited_ns: Of several calls in a row, time that the process, and that the judge was ready to run and had no processor.
    """

    inner_ns: int
    outer_ns: int
    cpu_ns: int | None
    outputs: tuple[Array, ...]
    idle_ns: int = 0
    poison: int = -1
    waited_ns: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Change:
    """What is different in a call that the contract of a kernel does not cover.

    Attributes:
        fields: ``in`` or ``out``, index, field of ``ytk_tensor``, axis (of ``dims``), value.
        inputs_less: How many inputs fewer than there are.
        outputs_less: How many outputs fewer.
        workspace_less: How many bytes of workspace fewer than it asked for.
        shift: Bytes by which every buffer is moved from its place, without a sign: less aligned, and still inside its pages.
        threads: Another number of threads; 0: the same.
        variant: Another number of a variant; None: the same.
    """

    fields: tuple[tuple[str, int, str, int, int], ...] = ()
    inputs_less: int = 0
    outputs_less: int = 0
    workspace_less: int = 0
    shift: int = 0
    threads: int = 0
    variant: int | None = None


@dataclass(frozen=True)
class Attempt:
    """What came of a changed call.

    Attributes:
        status: What the launcher returned.
        outputs: Their bytes afterwards.
        touched: The first output, or the workspace, that is not what the judge had filled it with; empty: none.
        beyond: Whether the workspace that it was not given is another than before.
    """

    status: int
    outputs: tuple[Array, ...]
    touched: str
    beyond: bool

    @property
    def tried(self) -> bool:
        """Whether the call was made at all."""
        return self.status != candidate_runner.NOT_TRIED
