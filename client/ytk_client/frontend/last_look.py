"""Look at the written graph as anybody would who is given it: what the target would change without a word is refused here.

Ranks, types and operators were held against the target node by node before. What is left are values: a constant or a result that
does not fit into the smaller type that the target stores it in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ytk_client.frontend.faithful import Samples
from ytk_client.frontend.naming import BorderNames
from ytk_client.inspection.findings import Finding, Severity
from ytk_client.inspection.onnx_narrowing import narrowing_findings
from ytk_client.inspection.onnx_read import load
from ytk_client.inspection.onnx_rules import custom_findings, quantize_findings
from ytk_core.errors import UserError

if TYPE_CHECKING:
    from ytk_core.targets import TargetProfile

_INT32 = torch.iinfo(torch.int32)


def refuse_losses(onnx_path: Path, profile: TargetProfile, names: BorderNames, samples: Samples) -> list[str]:
    """Refuse a graph whose values the target would change.

    Args:
        onnx_path: The graph, its weights beside it.
        profile: The target.
        names: Of the graph's inputs and outputs.
        samples: Inputs and outputs of the model, as torch has them.

    Returns:
        Notes: types that the target computes in a smaller one.

    Raises:
        UserError: ``target_loses``: a value would be clamped or become infinite, or half of a quantize pair is left.
    """
    model = load(onnx_path)
    narrowing = narrowing_findings(model, profile)
    for finding in [*narrowing, *custom_findings(model, profile), *quantize_findings(model, profile)]:
        if finding.severity is Severity.ERROR or finding.kind == "quantize-pair":
            raise _refused(finding, profile)
    if "int64" in profile.narrowed:
        for given, wanted in zip(samples.inputs, samples.outputs, strict=True):
            tensors = (*given, *names.pick(wanted))
            for name, tensor in zip((*names.inputs, *names.outputs), tensors, strict=True):
                if tensor.dtype is torch.int64:
                    _refuse_large(name, tensor, profile)
    return [f"{finding.message}: {finding.fix}" for finding in narrowing if finding.severity is Severity.WARNING]


def _refuse_large(name: str, tensor: torch.Tensor, profile: TargetProfile) -> None:
    beyond = tensor[(tensor < _INT32.min) | (tensor > _INT32.max)]
    if beyond.numel():
        msg = f"{name!r} holds {int(beyond[0])}, and {profile.name} stores int64 as int32: it would be clamped"
        raise UserError(msg, code="target_loses", hint="Keep integers below 2^31, or give them as float.")


def _refused(finding: Finding, profile: TargetProfile) -> UserError:
    place = ", ".join(
        part for part in (finding.module_path and f"module {finding.module_path}", finding.source_line) if part
    )
    where = finding.op or finding.node
    msg = (
        f"the target {profile.name} would lose something at {where}{f' ({place})' if place else ''}: {finding.message}"
    )
    return UserError(msg, code="target_loses", hint=finding.fix)
