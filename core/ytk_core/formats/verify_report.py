"""``verify.json``: how the outputs and times of one engine bundle compare with the reference."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.conditions import Conditions
from ytk_core.errors import FormatError, UserError
from ytk_core.formats import codec
from ytk_core.formats.benchmark import BenchmarkRow

SCHEMA_VERSION = 1


class OutputAccuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output of one sample against torch's.

    ``max_abs``, ``max_rel``: largest difference, absolute and relative to the reference; None where it is not finite.
    ``cosine``: None where a norm is 0 or not finite. ``sqnr_db``: signal to quantisation-noise ratio in dB; None where the
    outputs are equal (infinite) or not finite. ``note`` says in words what None or a failure means.
    """

    name: str
    sample: int
    max_abs: float | None
    max_rel: float | None
    cosine: float | None
    sqnr_db: float | None
    ok: bool
    tolerance: str
    tolerance_source: str
    note: str = ""


class PluginUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Whether a placeholder node really ran as its plugin in the engine.

    ``layers``: how many of its ``nodes`` are plugin layers. ``calls``: how often their kernels were called in ``runs`` runs; None: the
    engine does not count. ``idle``: nodes whose kernel was never called. ``nested``: how many nodes are inside a loop or branch, which
    decides how often they are called.
    """

    placeholder: str
    nodes: int
    layers: int
    calls: int | None = None
    runs: int = 0
    idle: tuple[str, ...] = ()
    nested: int = 0

    @property
    def ok(self) -> bool:
        """Whether every node is a plugin layer whose kernel was called."""
        return self.layers >= self.nodes and not self.idle

    @property
    def unusual(self) -> bool:
        """Whether the kernels were called more or less often than once a node and run, and no loop or branch explains it."""
        return self.calls is not None and not self.nested and self.calls != self.nodes * self.runs


class VerifyReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The verdict on one engine bundle."""

    schema_version: int = SCHEMA_VERSION
    bundle_digest: str
    arch_spec: str
    engine_name: str
    engine_version: str
    precision: str
    outputs: tuple[OutputAccuracy, ...]
    benchmark: BenchmarkRow | None = None
    torch_benchmark: BenchmarkRow | None = None
    conditions: Conditions | None = None
    plugins: tuple[PluginUse, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every output is within its tolerance and every plugin was used."""
        return (
            bool(self.outputs)
            and all(output.ok for output in self.outputs)
            and all(plugin.ok for plugin in self.plugins)
        )


def write_verify_report(path: Path | str, report: VerifyReport) -> None:
    """Write ``verify.json``.

    Raises:
        BoardError: ``disk_full``.
    """
    codec.write_json(path, report)


def read_verify_report(path: Path | str) -> VerifyReport:
    """Read ``verify.json``.

    Raises:
        FormatError: It is not one.
    """
    text = codec.read_bytes(path, "verify report")
    report = codec.decode(text, VerifyReport, str(path), schema_version=SCHEMA_VERSION, what="verify report")
    try:
        ArchSpec.parse(report.arch_spec)
    except UserError as err:
        msg = f"{path}: $.arch_spec: {err.message}"
        raise FormatError(msg, hint="Run `ytk embedded verify` again.") from err
    seen: set[tuple[str, int]] = set()
    for output in report.outputs:
        if (output.name, output.sample) in seen:
            msg = f"{path}: output {output.name!r} of sample {output.sample} occurs twice"
            raise FormatError(msg, hint="Run `ytk embedded verify` again.")
        seen.add((output.name, output.sample))
    return report
