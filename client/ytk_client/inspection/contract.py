"""The contract of a plugin (plugin_meta) for people, and what it says about a target; kernels and plugins share it."""

from __future__ import annotations

from ytk_client.inspection.findings import Finding, Severity, Table
from ytk_client.inspection.request import Request
from ytk_core.archspec import FIELDS, ArchSpec
from ytk_core.formats.plugin_meta import DeploymentTarget, PluginMeta

_TARGET_OF_ENGINE = {
    "openvino": DeploymentTarget.CPU,
    "onnxruntime": DeploymentTarget.CPU,
    "tensorrt": DeploymentTarget.TENSORRT,
}


def contract_fields(meta: PluginMeta) -> list[tuple[str, object]]:
    """Give the contract's single facts."""
    return [
        ("plugin", f"{meta.plugin_namespace}::{meta.plugin_name} version {meta.plugin_version}"),
        ("deployment target", meta.deployment_target),
        ("launcher", meta.launcher.launch),
        ("generator", f"{meta.generator.name} {meta.generator.version}, strategy {meta.generator.strategy}"),
        ("tolerance", f"rtol {meta.tolerance.rtol:g}, atol {meta.tolerance.atol:g} ({meta.tolerance.source})"),
        ("arch", ", ".join(f"{key}={item}" for key, item in meta.constraints.arch.items()) or "any"),
        ("region", meta.region_digest),
    ]


def contract_tables(meta: PluginMeta) -> list[Table]:
    """Give the contract's tensors and variants."""
    inputs: list[tuple[object, ...]] = [
        ("in", tensor.name, tensor.rank, "x".join("?" if dim is None else str(dim) for dim in tensor.dims), tensor.role)
        for tensor in meta.inputs
    ]
    outputs: list[tuple[object, ...]] = [
        ("out", tensor.name, tensor.rank, " x ".join(tensor.shape), None) for tensor in meta.outputs
    ]
    variants = tuple(
        (
            variant.id,
            ", ".join(f"{tensor.dtype} {tensor.format}" for tensor in variant.inputs),
            ", ".join(f"{tensor.dtype} {tensor.format}" for tensor in variant.outputs),
        )
        for variant in meta.variants
    )
    return [
        Table(title="Tensors", columns=("", "NAME", "RANK", "SHAPE", "ROLE"), rows=(*inputs, *outputs)),
        Table(title="Variants", columns=("VARIANT", "INPUTS", "OUTPUTS"), rows=variants),
    ]


def contract_findings(meta: PluginMeta, request: Request) -> list[Finding]:
    """Compare a contract with the target that the user named; without one there is nothing to compare."""
    where = f"{meta.plugin_namespace}::{meta.plugin_name}"
    found: list[Finding] = []
    if request.arch is None:
        return found
    wanted = _TARGET_OF_ENGINE[request.arch.engine_name]
    if meta.deployment_target is not wanted:
        found.append(
            Finding(
                kind="deployment-target",
                severity=Severity.ERROR,
                node=where,
                message=f"made for deployment_target={meta.deployment_target}; {request.arch.engine_name} takes {wanted}",
                fix=f"Generate the kernel again with --config deployment_target={wanted}.",
            )
        )
    found += [
        Finding(
            kind="arch",
            severity=Severity.ERROR,
            node=where,
            message=f"made for {field}={value}; {request.arch} has {field}={getattr(request.arch, field)}",
            fix=f"Generate the kernel on a worker with {field}={getattr(request.arch, field)}.",
        )
        for field, value in meta.constraints.arch.items()
        if field in FIELDS and getattr(request.arch, field) != value
    ]
    if request.arch.engine_name == "tensorrt" and request.profile.is_builtin(meta.plugin_name):
        found.append(
            Finding(
                kind="builtin-name",
                severity=Severity.ERROR,
                node=where,
                message=f"{meta.plugin_name} is a name that {request.profile.name}'s own importer takes first, silently",
                fix="Prepare the model again with another plugin name.",
                rule_id="builtin-name",
                source=request.profile.source,
            )
        )
    return found


def arch_findings(built: str, request: Request, what: str, fix: str) -> list[Finding]:
    """Compare the arch spec that a file was built for with the one that the user named."""
    if request.arch is None:
        return []
    made = ArchSpec.parse(built)
    return [
        Finding(
            kind="arch",
            severity=Severity.ERROR,
            message=f"the {what} was built for {field} {getattr(made, field)}; {request.arch} has {getattr(request.arch, field)}",
            fix=fix,
        )
        for field in request.arch.differing_fields(made)
    ]
