"""Strategies: each offers ways to lower a region, and every way that works becomes candidates. Measurement decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_gaia.generator import convolution
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.border import EmittedKernel
from ytk_gaia.generator.cost import Cost, cost_of
from ytk_gaia.generator.emit_cpp import emit
from ytk_gaia.generator.lowering import CannotLowerError, LoweredRegion, LoweringPlan, lower
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.rewrites import col2im
from ytk_gaia.generator.schedules import SCHEDULES, Schedule

aten = torch.ops.aten


class Strategy(Protocol):
    """Offers lowering plans for a region."""

    @property
    def name(self) -> str:
        """Word for ``--config strategies=`` and for reports."""

    def plans(self, operators: frozenset[Any]) -> Iterable[LoweringPlan]:
        """Give the plans that may apply to a region.

        Args:
            operators: Operator overloads of the region after torch's default decompositions and before any other.
        """


@dataclass(frozen=True)
class Loops:
    """The general strategy: Inductor's loop IR as it comes, and with pointwise chains kept in one loop."""

    name: str = "loops"

    def plans(self, operators: frozenset[Any]) -> Iterator[LoweringPlan]:
        """Always two plans."""
        del operators
        yield LoweringPlan("base", self.name)
        yield LoweringPlan("recompute", self.name, options=inductor.RECOMPUTE_OPTIONS)


@dataclass(frozen=True)
class Rewrites:
    """Other loop forms of single operators."""

    name: str = "rewrites"
    known: tuple[LoweringPlan, ...] = (col2im.PLAN,)

    def plans(self, operators: frozenset[Any]) -> Iterator[LoweringPlan]:
        """Give the rewrites whose operator occurs."""
        for plan in self.known:
            if operators & set(plan.keep):
                yield plan


@dataclass(frozen=True)
class Templates:
    """Forms for whole families of operators that the general lowering serves badly."""

    name: str = "templates"

    def plans(self, operators: frozenset[Any]) -> Iterator[LoweringPlan]:
        """Give the templates whose operators occur."""
        if operators & convolution.CONVOLUTIONS:
            yield LoweringPlan(
                "taps",
                self.name,
                lowerings={aten.convolution.default: convolution.lower_unrolled},
                options=inductor.RECOMPUTE_OPTIONS,
            )
            yield LoweringPlan(
                "padded-taps",
                self.name,
                lowerings={aten.convolution.default: convolution.lower_padded},
                options=inductor.RECOMPUTE_OPTIONS,
            )


REGISTRY: dict[str, Strategy] = {strategy.name: strategy for strategy in (Loops(), Rewrites(), Templates())}


@dataclass(frozen=True)
class Dialect:
    """How the same loops are written and compiled.

    Attributes:
        name: Word for candidate ids.
        flags: Extra compiler flags. None changes what an expression means for finite numbers, infinities or NaN: only what
            may trap.
        vector_math: Whether exp and its kin are the header's polynomials, which vectorise, or libm's functions.
    """

    name: str
    flags: tuple[str, ...] = ()
    vector_math: bool = False

    def write(self, kernel: EmittedKernel) -> EmittedKernel:
        """Give the kernel in this dialect."""
        if not self.vector_math:
            return kernel
        return replace(kernel, source=_VECTORISED.sub(r"ytk::vec_\1(", kernel.source))


_VECTORISED = re.compile(r"\bytk::op_(exp|tanh|sigmoid|erf)\(")


def dialects(arch: ArchSpec) -> tuple[Dialect, ...]:
    """Give the dialects that are tried for an arch."""
    width = ("-mprefer-vector-width=512",) if arch.device == "cpuv4" else ()
    return (Dialect("plain"), Dialect("wide", ("-fno-trapping-math", *width), vector_math=True))


@dataclass(frozen=True)
class CandidateKernel:
    """One candidate.

    Attributes:
        id: Unique in its search; a file name.
        plan: How it was lowered.
        schedule: How its loops run.
        dialect: How it is written and compiled.
        kernel: Its C++.
        cost: What its loops cost on paper, where that is known.
    """

    id: str
    plan: LoweringPlan
    schedule: Schedule
    dialect: Dialect
    kernel: EmittedKernel
    cost: Cost | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Search parameters for reports and the contract."""
        return {
            "plan": self.plan.name,
            "parallel_loops": self.schedule.parallel,
            "vector": self.schedule.vector.value,
            "split": self.schedule.split,
            "vector_math": self.dialect.vector_math,
            "flags": list(self.dialect.flags),
        }


@dataclass(frozen=True)
class Refusal:
    """A plan that does not apply, and the operators that it has no form for."""

    plan: str
    strategy: str
    operators: tuple[str, ...]


def region_operators(program: torch.export.ExportedProgram) -> frozenset[Any]:
    """Give the operator overloads of a program as captured."""
    return frozenset(node.target for node in program.graph.nodes if node.op == "call_function")


@dataclass(frozen=True)
class Lowered:
    """A region as one plan lowers it."""

    plan: LoweringPlan
    region: LoweredRegion


def lower_all(region: Region, strategies: Sequence[str]) -> tuple[list[Lowered], list[Refusal]]:
    """Lower a region by every plan that applies, and say why the others do not."""
    operators = region_operators(region.program)
    lowered, refusals = [], []
    for name in strategies:
        for plan in REGISTRY[name].plans(operators):
            try:
                lowered.append(Lowered(plan, lower(region.program, plan)))
            except CannotLowerError as err:
                refusals.append(Refusal(plan.name, name, tuple(err.operators)))
    return lowered, refusals


def generate_candidates(
    region: Region, strategies: Sequence[str], arch: ArchSpec, limit: int
) -> tuple[list[CandidateKernel], list[Refusal]]:
    """Generate every candidate that applies, without duplicates, the most different ones first.

    Args:
        region: What to make a kernel for.
        strategies: Names in :data:`REGISTRY`.
        arch: A CPU arch spec; decides the flags that are tried.
        limit: How many at most.

    Raises:
        UserError: ``no_strategy``: no strategy has a form for the region; names the operators.
    """
    lowered, refusals = lower_all(region, strategies)
    costs = {item.plan.name: cost_of(item.region) for item in lowered}
    found: list[CandidateKernel] = []
    seen: set[tuple[str, tuple[str, ...]]] = set()
    # Plans vary fastest, then schedules, then dialects: a small limit still sees every plan.
    for dialect in dialects(arch):
        for schedule in SCHEDULES:
            for item in lowered:
                try:
                    kernel = dialect.write(emit(item.region, region.border, schedule))
                except CannotLowerError as err:
                    refusal = Refusal(item.plan.name, item.plan.strategy, tuple(err.operators))
                    refusals += [refusal] if refusal not in refusals else []
                    continue
                key = (kernel.source, dialect.flags)
                if key in seen:
                    continue
                seen.add(key)
                name = f"{item.plan.strategy}-{item.plan.name}-{schedule.name}-{dialect.name}"
                found.append(CandidateKernel(name, item.plan, schedule, dialect, kernel, costs[item.plan.name]))
    if not found:
        operators = sorted({op for refusal in refusals for op in refusal.operators})
        raise UserError(
            f"no strategy has a kernel form for this region: {'; '.join(operators) or 'nothing applies'}",
            code="no_strategy",
            hint="Carve a smaller region without these operators, or allow more with --config strategies=all.",
        )
    return found[:limit], refusals
