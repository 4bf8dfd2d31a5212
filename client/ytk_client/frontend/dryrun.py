"""``prepare --dryrun``: what a real run would find and do; nothing but a report is written."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ytk_client.frontend import forms
from ytk_client.frontend.carve import CarvedRegion, Carver
from ytk_client.frontend.faithful import Samples, export_faithfully
from ytk_client.frontend.forms import RewrittenOp
from ytk_client.frontend.fx_nodes import source_line
from ytk_client.frontend.last_look import refuse_losses
from ytk_client.frontend.opened import OpenedModel, open_model
from ytk_core.formats.prepare_outputs import CandidateReason

if TYPE_CHECKING:
    from ytk_client.frontend.prepare import PrepareRequest
    from ytk_client.frontend.selectors import Selector
    from ytk_core.targets import TargetProfile

SCHEMA_VERSION = 1
REASON_CLASS = {
    CandidateReason.EXPORT_UNSUPPORTED: "no-function",
    CandidateReason.TARGET_ILLEGAL: "illegal-op",
    CandidateReason.RANK: "rank",
    CandidateReason.DTYPE: "dtype",
    CandidateReason.MISPARSE: "misparse",
    CandidateReason.NUMERICS: "numerics",
    CandidateReason.SELECTOR: "selector",
}


@dataclass(frozen=True)
class CarvedOp:
    """One region that a real run would carve. ``reason_class``: a value of :data:`REASON_CLASS`; ``nodes``: all its operators, over all sites."""

    placeholder: str
    op: str
    reason_class: str
    reason: str
    sites: int
    nodes: int
    module_path: str
    module_class: str
    source_line: str
    cannot_be_plugin: str | None
    selector: str | None
    has_plugin: bool = False
    """Whether a shipped plugin stands for it: nothing is left to do."""


@dataclass(frozen=True)
class DryRunReport:
    """What a real run would do.

    ``coverage_percent``: the share of operators that the target takes without a plugin, with a shipped one or by the user's own selection; ``supported`` and
    ``unsupported`` count these and the others.
    """

    profile: str
    opset: int
    coverage_percent: float
    operators: int
    supported: dict[str, int]
    unsupported: dict[str, int]
    carved: tuple[CarvedOp, ...]
    rewritten: tuple[RewrittenOp, ...]
    notes: tuple[str, ...]
    evaluator: str
    schema_version: int = SCHEMA_VERSION

    @property
    def refused(self) -> tuple[CarvedOp, ...]:
        """The regions that nobody asked for, and that no shipped plugin stands for."""
        return tuple(each for each in self.carved if each.selector is None and not each.has_plugin)


def dry_run(
    request: PrepareRequest, profile: TargetProfile, selectors: list[Selector], on_phase: Callable[[str, str], None]
) -> DryRunReport:
    """Do all of prepare in a directory of its own, which is removed, and report.

    Raises:
        UserError: As :func:`ytk_client.frontend.prepare.prepare`.
    """
    opened = open_model(request, profile, selectors, on_phase)
    with tempfile.TemporaryDirectory(prefix="ytk-dryrun-") as folder:
        exported = export_faithfully(
            opened.program,
            opened.carver,
            profile,
            opened.names,
            Samples(opened.inputs, opened.truth),
            onnx_path=Path(folder) / "model.onnx",
            npz_path=Path(folder) / "model.npz",
            model_path=opened.model.path,
            on_phase=on_phase,
        )
        losses = refuse_losses(Path(folder) / "model.onnx", profile, opened.names, Samples(opened.inputs, opened.truth))
    on_phase("report", "")
    operators = [node for node in opened.nodes if node.op == "call_function" and not _is_getitem(node.target)]
    carved = opened.carver.carved
    selected = {each.placeholder for each in opened.carver.regions if each.selector is not None or each.shipped}
    lost = [node for node in operators if node.name in carved and carved[node.name][0] not in selected]
    return DryRunReport(
        profile=profile.name,
        opset=exported.graph.opset_imports[""],
        coverage_percent=round(100.0 * (len(operators) - len(lost)) / len(operators), 2) if operators else 100.0,
        operators=len(operators),
        supported=dict(Counter(node.target for node in operators if node.name not in carved).most_common()),
        unsupported=dict(Counter(node.target for node in lost).most_common()),
        carved=tuple(_carved(region, opened.carver, opened) for region in opened.carver.regions),
        rewritten=(*opened.rewritten, *forms.rewritten(exported.graph)),
        notes=(*opened.notes, *losses),
        evaluator=exported.comparison.evaluator,
    )


def _is_getitem(target: str) -> bool:
    return target.endswith("getitem")


def _carved(region: CarvedRegion, carver: Carver, opened: OpenedModel) -> CarvedOp:
    site, own = region.sites[0], {each.node for each in region.sites}
    return CarvedOp(
        placeholder=region.placeholder,
        op=region.aten_op,
        reason_class=REASON_CLASS[region.refusal.reason],
        reason=region.refusal.text,
        sites=len(region.sites),
        nodes=sum(node in own for _, node in carver.carved.values()),
        module_path=site.module_path,
        module_class=site.module_class,
        source_line=source_line(site.stack_trace, opened.model.path),
        cannot_be_plugin=region.cannot_be_plugin,
        selector=region.selector,
        has_plugin=region.shipped is not None,
    )
