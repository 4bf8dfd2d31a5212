"""Target profiles: which nodes an engine version accepts, refuses, or silently computes wrongly.

The data is ``target_profiles.json``: reviewed, versioned, every rule with its source. Rules of kind ``note`` are text for people;
all others are executable.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.resources
from typing import Any, Literal

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.errors import FormatError, UserError
from ytk_core.formats import codec
from ytk_core.targets.nodes import CONDITIONS, NodeFacts

SCHEMA_VERSION = 1
DEFAULT_PROFILE = "trt86"
"""The strictest shipped TensorRT profile: what it accepts is portable."""


class Kind(enum.StrEnum):
    """Why a node is not legal, most serious first."""

    MISSING = "missing-op"
    MISPARSE = "misparse"
    RANK = "rank"
    DTYPE = "dtype"
    REFUSE = "refuse"
    NOTE = "note"


_SEVERITY = list(Kind)


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Sourced(_Struct, frozen=True, kw_only=True):
    """A statement and where it comes from."""

    text: str
    source: str


class Rule(_Struct, frozen=True, kw_only=True):
    """One restriction; it fires if every condition in ``when`` holds. ``id``: ``<Op>.<word>``, unique."""

    id: str
    profiles: tuple[str, ...]
    kind: Kind
    text: str
    when: tuple[dict[str, Any], ...]
    source: str


class Typed(_Struct, frozen=True, kw_only=True):
    """Which tensors the documented element types are about."""

    inputs: tuple[int, ...] | Literal["all"] = (0,)
    outputs: tuple[int, ...] = ()


class OpEntry(_Struct, frozen=True, kw_only=True):
    """One operator. ``dtypes``: per profile that has it, the element types; null: no restriction known."""

    op: str
    since: int | None
    dtypes: dict[str, tuple[str, ...] | None]
    domain: str = ""
    typed: Typed = Typed()
    rules: tuple[Rule, ...] = ()


class _ProfileData(_Struct, frozen=True, kw_only=True):
    engine: str
    engine_version: tuple[int, int]
    opset: int
    max_rank: int | None
    closed: bool
    domains: tuple[str, ...]
    precisions: tuple[str, ...]
    dtypes: tuple[str, ...]
    narrowed: dict[str, str]
    mixed_dtypes: bool
    builtin_prefixes: tuple[str, ...]
    source: str
    notes: tuple[Sourced, ...]


class _Document(_Struct, frozen=True, kw_only=True):
    schema_version: int
    revision: str
    note: str
    default: str
    profiles: dict[str, _ProfileData]
    exporter_hazards: tuple[Sourced, ...]
    ops: tuple[OpEntry, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a profile accepts a node. ``kind``, ``rule`` and ``source`` are empty where it does."""

    ok: bool
    kind: str = ""
    rule: str = ""
    source: str = ""
    rule_id: str = ""


_ACCEPTED = Verdict(ok=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetProfile:
    """What one engine version accepts.

    ``narrowed``: element types it silently stores in a smaller one. ``precisions``: what its engines may compute in, on a device that can.
    """

    name: str
    engine: str
    engine_version: tuple[int, int]
    opset: int
    max_rank: int | None
    closed: bool
    domains: frozenset[str]
    precisions: tuple[str, ...]
    dtypes: frozenset[str]
    narrowed: dict[str, str]
    mixed_dtypes: bool
    builtin_prefixes: tuple[str, ...]
    source: str
    revision: str
    notes: tuple[Sourced, ...]
    ops: dict[tuple[str, str], OpEntry]

    @property
    def builtin_ops(self) -> frozenset[str]:
        """Names that the engine's own importer takes; a plugin of such a name would be ignored without a word."""
        return frozenset(name for (_, name), entry in self.ops.items() if self.name in entry.dtypes)

    def is_builtin(self, op_type: str) -> bool:
        """Whether a plugin of this name would lose against a built-in importer."""
        return op_type in self.builtin_ops or op_type.startswith(self.builtin_prefixes or ("\0",))

    def check(self, node: NodeFacts) -> Verdict:
        """Give the most serious objection to a node, or a verdict with ``ok``.

        Ranks, dtypes and constants that are unknown raise no objection.
        """
        found = self.check_all(node)
        return found[0] if found else _ACCEPTED

    def check_all(self, node: NodeFacts) -> tuple[Verdict, ...]:
        """Give every objection to a node, most serious first."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        entry = self.ops.get((domain, node.op_type))
        if node.domain not in self.domains:
            return (self._missing(f"{node.domain}::{node.op_type} is no operator of {self.name}: it needs a plugin"),)
        if self.closed and (entry is None or self.name not in entry.dtypes):
            return (self._missing(f"{self.name} has no importer for {node.op_type}"),)
        # A rule of the operator itself says more than a general one of the same kind, so it comes first.
        found = [*self._ruled(node, entry), *self._general(node, entry), *self._typed(node, entry)]
        return tuple(sorted(found, key=lambda verdict: _SEVERITY.index(Kind(verdict.kind))))

    def notes_of(self, op_type: str, domain: str = "") -> tuple[Sourced, ...]:
        """Give the restrictions of an operator that are text only."""
        entry = self.ops.get((domain, op_type))
        rules = entry.rules if entry else ()
        return tuple(
            Sourced(text=r.text, source=r.source) for r in rules if r.kind is Kind.NOTE and self.name in r.profiles
        )

    def _missing(self, text: str) -> Verdict:
        return Verdict(ok=False, kind=Kind.MISSING, rule=text, source=self.source, rule_id="missing-op")

    def _general(self, node: NodeFacts, entry: OpEntry | None) -> list[Verdict]:
        found = []
        for index, rank in enumerate(node.input_ranks):
            if rank is not None and self.max_rank is not None and rank > self.max_rank:
                text = f"input {index} has rank {rank}; {self.name} accepts tensors up to rank {self.max_rank}"
                found.append(Verdict(ok=False, kind=Kind.RANK, rule=text, source=self.source, rule_id="max-rank"))
                break
        # What the operator's own list names (int8 of DequantizeLinear, say) is more specific than the profile's.
        own = set((entry.dtypes.get(self.name) or ()) if entry else ())
        sides = (("input", node.input_dtypes), ("output", node.output_dtypes))
        for side, index, dtype in ((side, i, d) for side, dtypes in sides for i, d in enumerate(dtypes)):
            if (
                dtype is not None
                and self.narrowed.get(dtype, dtype) not in self.dtypes | own
                and not self._quantized(node, dtype)
            ):
                text = f"{side} {index} has element type {dtype}, which {self.name} does not have"
                found.append(Verdict(ok=False, kind=Kind.DTYPE, rule=text, source=self.source, rule_id="dtypes"))
                break
        known = {dtype for dtype in node.input_dtypes if dtype is not None}
        if not self.mixed_dtypes and len(known) > 1:
            text = f"inputs of {sorted(known)}; {self.name} takes no mixed element types"
            found.append(Verdict(ok=False, kind=Kind.DTYPE, rule=text, source=self.source, rule_id="mixed-dtypes"))
        return found

    @staticmethod
    def _quantized(node: NodeFacts, dtype: str) -> bool:
        return dtype == "int8" and node.op_type in {"QuantizeLinear", "DequantizeLinear"}

    def _typed(self, node: NodeFacts, entry: OpEntry | None) -> list[Verdict]:
        allowed = entry.dtypes.get(self.name) if entry else None
        if entry is None or allowed is None:
            return []
        inputs = range(len(node.input_dtypes)) if entry.typed.inputs == "all" else entry.typed.inputs
        tensors = [(f"input {index}", node.dtype(index)) for index in inputs]
        tensors += [
            (f"output {index}", node.output_dtypes[index]) for index in entry.typed.outputs if node.has_output(index)
        ]
        for where, dtype in tensors:
            if dtype is not None and self.narrowed.get(dtype, dtype) not in allowed:
                text = f"{where} of {node.op_type} is {dtype}; {self.name} accepts {', '.join(allowed)}"
                return [
                    Verdict(ok=False, kind=Kind.DTYPE, rule=text, source=self.source, rule_id=f"{node.op_type}.dtypes")
                ]
        return []

    def _ruled(self, node: NodeFacts, entry: OpEntry | None) -> list[Verdict]:
        return [
            Verdict(ok=False, kind=rule.kind, rule=f"{node.op_type}: {rule.text}", source=rule.source, rule_id=rule.id)
            for rule in (entry.rules if entry else ())
            if rule.kind is not Kind.NOTE
            and self.name in rule.profiles
            and all(CONDITIONS[name](node, arg) for condition in rule.when for name, arg in condition.items())
        ]


# ---- loading ---------------------------------------------------------------------------------------------------------


def parse_profiles(text: bytes, origin: str) -> dict[str, TargetProfile]:
    """Parse a profile document.

    Raises:
        FormatError: It is not one: unknown conditions or profiles, duplicate operators or rules, a rule without source.
    """
    document = codec.decode(text, _Document, origin, schema_version=SCHEMA_VERSION, what="target profile document")
    if document.default not in document.profiles:
        msg = f"{origin}: $.default is {document.default!r}, which is no profile"
        raise FormatError(msg, hint="Name one of the profiles.")
    ops: dict[tuple[str, str], OpEntry] = {}
    ids: set[str] = set()
    for index, entry in enumerate(document.ops):
        if (entry.domain, entry.op) in ops:
            msg = f"{origin}: $.ops[{index}]: the operator {entry.op!r} occurs twice"
            raise FormatError(msg, hint="Merge the two entries.")
        ops[entry.domain, entry.op] = entry
        if unknown := sorted(set(entry.dtypes) - set(document.profiles)):
            msg = f"{origin}: $.ops[{index}] ({entry.op}): unknown profiles {unknown}"
            raise FormatError(msg, hint="Name profiles of this document.")
        for rule in entry.rules:
            if (problem := _rule_problem(rule, set(document.profiles), ids)) is not None:
                msg = f"{origin}: $.ops[{index}] ({entry.op}): rule {rule.id!r}: {problem}"
                raise FormatError(msg, hint="See docs/formats.md, target profiles.")
            ids.add(rule.id)
    return {
        name: TargetProfile(
            name=name,
            engine=data.engine,
            engine_version=data.engine_version,
            opset=data.opset,
            max_rank=data.max_rank,
            closed=data.closed,
            domains=frozenset(data.domains),
            precisions=data.precisions,
            dtypes=frozenset(data.dtypes),
            narrowed=data.narrowed,
            mixed_dtypes=data.mixed_dtypes,
            builtin_prefixes=data.builtin_prefixes,
            source=data.source,
            revision=document.revision,
            notes=data.notes,
            ops=ops,
        )
        for name, data in document.profiles.items()
    }


def _rule_problem(rule: Rule, profiles: set[str], ids: set[str]) -> str | None:
    if rule.id in ids:
        return "the id occurs twice"
    if not rule.source or not rule.text:
        return "text and source must say something"
    if unknown := sorted(set(rule.profiles) - profiles):
        return f"unknown profiles {unknown}"
    if (rule.kind is Kind.NOTE) != (not rule.when):
        return "a note has no conditions, every other kind has some"
    for condition in rule.when:
        if unknown := sorted(set(condition) - set(CONDITIONS)):
            return f"unknown conditions {unknown}; known: {', '.join(sorted(CONDITIONS))}"
    return None


@functools.cache
def _shipped() -> dict[str, TargetProfile]:
    resource = importlib.resources.files("ytk_core.targets") / "target_profiles.json"
    return parse_profiles(resource.read_bytes(), "target_profiles.json")


def profile_names() -> list[str]:
    """Give the names of the shipped profiles."""
    return list(_shipped())


def load_profile(name_or_arch: str | ArchSpec = DEFAULT_PROFILE) -> TargetProfile:
    """Give a shipped profile by its name, or the one that covers an arch spec's engine version.

    A version between two profiles takes the older one: what it accepts, the newer one does too.

    Raises:
        UserError: No such profile; the engine is older than the oldest profile; the arch spec is malformed.
    """
    profiles = _shipped()
    if isinstance(name_or_arch, str):
        if name_or_arch in profiles:
            return profiles[name_or_arch]
        if "-" not in name_or_arch:
            msg = f"no target profile {name_or_arch!r}"
            raise UserError(msg, code="no_profile", hint=f"Profiles: {', '.join(profiles)}; or give an arch spec.")
        name_or_arch = ArchSpec.parse(name_or_arch)
    same = [profile for profile in profiles.values() if profile.engine == name_or_arch.engine_name]
    # The CPU engines' profiles were measured on one version; theirs is used for all.
    if name_or_arch.engine_name != "tensorrt":
        return same[0]
    older = [profile for profile in same if profile.engine_version <= name_or_arch.engine_version]
    if not older:
        lowest = min(same, key=lambda profile: profile.engine_version)
        msg = f"no target profile for {name_or_arch.engine} in {name_or_arch}: the oldest is {lowest.name}"
        raise UserError(
            msg, code="no_profile", hint=f"Use TensorRT {'.'.join(map(str, lowest.engine_version))} or newer."
        )
    return max(older, key=lambda profile: profile.engine_version)
