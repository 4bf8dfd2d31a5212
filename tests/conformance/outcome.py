"""What can become of one call of an operator, as plain data."""

from __future__ import annotations

import enum

import msgspec


class Outcome(enum.StrEnum):
    """How one sample, or one entry, ended; best first."""

    NATIVE = "native"
    """Standard ONNX nodes only, and ONNX Runtime computes from the written files what torch computes."""
    CARVED = "carved"
    """Regions were carved, each legal for a plugin and computing what torch computes; the rest of the graph agrees."""
    REFUSED = "refused"
    """An error with a code and a reason; nothing is written. Also a region that no plugin can stand for."""
    BLOCKED = "blocked"
    """torch.export cannot capture it (or the sample fails in torch itself): nothing for the exporter to do."""
    WRONG = "wrong"
    """prepare accepted it, and an independent run of the written graph, or a region, gives other numbers than torch."""
    CRASH = "crash"
    """An exception that is no error of ours, or the process died."""
    HANG = "hang"
    """It took longer than the limit."""


class RegionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One carved region. ``obstacle``: why it is not legal for a plugin; ``difference``: why it does not reproduce torch."""

    name: str
    aten_op: str
    reason: str
    rule: str
    obstacle: str = ""
    difference: str = ""


class SampleFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one sample. ``code`` and ``reason`` are of the error that ended it, or of the judge that disagreed."""

    outcome: Outcome
    inputs: str = ""
    code: str = ""
    reason: str = ""
    opset: int = 0
    evaluator: str = ""
    regions: tuple[RegionFinding, ...] = ()
    random: bool = False
    """The call draws random numbers: refused as it is, and this is what becomes of it with ``--random-inputs``."""
    cpu_s: float = 0.0


class EntryFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one dtype: the worst of its captured samples."""

    name: str
    dtype: str
    samples: tuple[SampleFinding, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome; blocked samples count only where there is no other."""
        captured = [sample.outcome for sample in self.samples if sample.outcome is not Outcome.BLOCKED]
        return max(captured, key=list(Outcome).index, default=Outcome.BLOCKED)
