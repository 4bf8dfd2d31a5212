"""What the exporter or the target does not take, before it is known how it will be carved."""

from __future__ import annotations

from dataclasses import dataclass

from ytk_core.formats.prepare_outputs import CandidateReason


@dataclass(frozen=True)
class Refusal:
    """One refused node of the decomposed program.

    ``node`` is the FX node's name, ``text`` the words of whoever refuses, ``rule`` the profile's rule ("" for the
    exporter), ``source`` where that rule comes from.
    """

    node: str
    reason: CandidateReason
    text: str
    rule: str = ""
    source: str = ""
