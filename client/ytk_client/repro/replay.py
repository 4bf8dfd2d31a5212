"""Replay a repro: compute its outputs again, in a sandboxed child, and compare them with the captured ones."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_client.repro.format import Kind, Loaded, Raised, read_repro, write_repro
from ytk_client.repro.tasks import OUTPUTS
from ytk_core.accuracy import AccuracyLimit, compare
from ytk_core.agent.tasks import run_task_locally
from ytk_core.archspec import ArchSpec, host_arch_specs
from ytk_core.errors import CandidateError, FailureClass, UserError
from ytk_core.formats.plugin_meta import DeploymentTarget, Format, PluginMeta
from ytk_core.formats.verify_report import OutputAccuracy
from ytk_core.formats.weights_npz import read_arrays
from ytk_core.sandbox import SandboxMode, SandboxPolicy

SCHEMA_VERSION = 1
DEFAULT_LIMIT_S = 600.0
_ENGINE = "ov20264"
_GIB = 1024**3
# torch maps far more than it uses; what counts is the resident memory of all processes.
_POLICY = SandboxPolicy(memory_bytes=64 * _GIB, disk_bytes=8 * _GIB, processes=256)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay gave. ``by``: torch, or the kernel's file; ``raised``: the exception that came instead of outputs."""

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    name: str
    by: str
    ok: bool
    outputs: tuple[OutputAccuracy, ...] = ()
    raised: Raised | None = None
    expected_raise: Raised | None = None
    exports: bool | None = None
    export_error: Raised | None = None
    expected_exports: bool | None = None
    versions: dict[str, str] = {}
    captured_with: dict[str, str] = {}
    note: str = ""


def replay(
    path: Path,
    *,
    kernel: Path | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    sandbox: SandboxMode = "required",
    wall_limit_s: float = DEFAULT_LIMIT_S,
    export: bool = False,
    log: Callable[[str], None] | None = None,
) -> Replay:
    """Compute a repro's outputs again and compare them.

    Args:
        path: A repro, directory or zip.
        kernel: A built plugin ``.so`` (with its manifest beside it) or a kernel bundle, to run instead of torch.
        rtol: Relative tolerance instead of the default (of the dtype, or of the kernel's contract).
        atol: Absolute tolerance likewise.
        sandbox: ``required`` refuses where no sandbox works: a repro's Python and a kernel are somebody else's code.
        wall_limit_s: Of the child.
        export: Try torch's ONNX exporter too; always done where the repro says whether it worked.
        log: Takes the child's output; standard error by default.

    Raises:
        FormatError: The repro, or the kernel's file, is damaged.
        UserError: The kernel is not for this region or this machine; or the repro's code does not run here.
        BoardError: ``no_sandbox``, or the machine failed.
    """
    loaded = read_repro(path)
    meta: PluginMeta | None = None
    task: dict[str, Any] = {"export": export or loaded.repro.exports is not None}
    if kernel is not None:
        meta, task = _kernel_task(loaded, kernel)
    # Not below /tmp for everyone to read, and gone afterwards.
    with tempfile.TemporaryDirectory(prefix="ytk-replay-") as folder:
        workdir = Path(folder)
        write_repro(workdir / "in", loaded)
        if kernel is not None:
            (workdir / "in" / "kernel").mkdir()
            copy = workdir / "in" / "kernel" / kernel.name
            shutil.copyfile(kernel, copy)
            task["bundle" if kernel.suffix == ".py" else "library"] = str(copy)
        ref = "ytk_client.repro.tasks:" + ("run_torch" if kernel is None else "run_kernel")
        common = {"sandbox": _POLICY, "wall_limit_s": wall_limit_s, "mode": sandbox, "log": log}
        blame = FailureClass.YOURS if kernel is None else FailureClass.CANDIDATES
        try:
            answer = run_task_locally(ref, task, workdir, blame=blame, **common)  # type: ignore[arg-type]  # a dict of keywords
        except CandidateError as err:
            return _result(loaded, kernel, note=err.message)
        raised = msgspec.convert(answer["raised"], Raised) if "raised" in answer else None
        arrays = read_arrays(workdir / OUTPUTS) if raised is None else {}
    found: dict[str, Any] = {"versions": {"torch": str(answer["torch"])}} if "torch" in answer else {}
    if "export_error" in answer:
        error = answer["export_error"]
        found |= {"exports": error is None, "export_error": None if error is None else msgspec.convert(error, Raised)}
    if raised is not None or loaded.repro.raised is not None:
        return _result(loaded, kernel, raised=raised, **found)
    outputs = _compare(loaded, arrays, meta, rtol, atol)
    count = int(answer["outputs"])
    note = "" if count == len(loaded.repro.outputs) else f"{count} outputs instead of {len(loaded.repro.outputs)}"
    return _result(loaded, kernel, outputs=outputs, note=note, **found)


def _result(
    loaded: Loaded,
    kernel: Path | None,
    *,
    outputs: tuple[OutputAccuracy, ...] = (),
    raised: Raised | None = None,
    versions: dict[str, str] | None = None,
    exports: bool | None = None,
    export_error: Raised | None = None,
    note: str = "",
) -> Replay:
    want, header = loaded.repro.raised, loaded.repro
    if raised is not None or want is not None:
        # The message may hold addresses and paths: the type is what can be compared.
        ok = raised is not None and want is not None and raised.type == want.type
    else:
        ok = not note and all(output.ok for output in outputs)
    if exports is not None and header.exports is not None:
        same = (export_error and export_error.type) == (header.export_error and header.export_error.type)
        ok = ok and exports == header.exports and same
    return Replay(
        kind=loaded.repro.kind,
        name=loaded.repro.name,
        by="torch" if kernel is None else kernel.name,
        ok=ok,
        outputs=outputs,
        raised=raised,
        expected_raise=want,
        exports=exports,
        export_error=export_error,
        expected_exports=header.exports,
        versions=versions or {},
        captured_with=loaded.repro.versions,
        note=note,
    )


def _compare(
    loaded: Loaded,
    arrays: dict[str, np.ndarray[Any, Any]],
    meta: PluginMeta | None,
    rtol: float | None,
    atol: float | None,
) -> tuple[OutputAccuracy, ...]:
    limit = None
    if meta is not None and rtol is None and atol is None:
        limit = AccuracyLimit(
            rtol=meta.tolerance.rtol, atol=meta.tolerance.atol, source=f"the kernel's contract: {meta.tolerance.source}"
        )
    found = []
    for index, tensor in enumerate(loaded.repro.outputs):
        want = loaded.arrays[f"out/{tensor.name}"]
        got = arrays.get(f"out{index}")
        is_float = tensor.dtype.startswith(("float", "bfloat"))
        found.append(
            compare(
                tensor.name,
                np.empty((0,) * (want.ndim + 1), want.dtype) if got is None else got,
                want,
                dtype=tensor.dtype,
                rtol=rtol if is_float else None,
                atol=atol if is_float else None,
                limit=limit if is_float else None,
            )
        )
    return tuple(found)


# ---- kernels -------------------------------------------------------------------------------------------------------------


def _kernel_task(loaded: Loaded, kernel: Path) -> tuple[PluginMeta, dict[str, Any]]:
    """Read a kernel's contract, compare it with the region, and say how to call it."""
    if loaded.repro.kind is not Kind.REGION:
        raise UserError(
            f"{loaded.repro.name!r} is a module, and a kernel stands for a region",
            code="wrong_repro",
            hint="Capture the region: ytk embedded capture plugin_candidates/<Name>.",
        )
    arch = host_arch_specs(_ENGINE)[0]
    if kernel.suffix == ".py":
        from ytk_core.formats.kernel_bundle import read_bundle

        meta = read_bundle(kernel).meta
    else:
        from ytk_client.plugins import load_plugins

        (plugin,) = load_plugins([kernel])
        meta = plugin.manifest.meta
        _check_machine(kernel, ArchSpec.parse(plugin.manifest.arch_spec))
    if meta.deployment_target is DeploymentTarget.TENSORRT:
        raise UserError(
            f"{kernel} is a TensorRT kernel, which runs inside of an engine only",
            code="wrong_deployment_target",
            hint="Use `ytk embedded compile` and `ytk embedded verify` on the target.",
        )
    return meta, {
        "arch": str(arch),
        "variant": _variant(loaded, meta, kernel),
        "attributes": {each.name: each.value for each in meta.attributes if each.value is not None},
    }


def _check_machine(kernel: Path, built: ArchSpec) -> None:
    here = host_arch_specs(built.engine) if built.device_kind == "cpu" else []
    if not any(spec.cpu == built.cpu and spec.device == built.device for spec in here):
        raise UserError(
            f"{kernel} was built for {built.cpu}-{built.device}, which this machine does not run",
            code="wrong_arch",
            hint="Replay on such a machine, or give the kernel bundle: it is compiled for this one.",
        )


def _variant(loaded: Loaded, meta: PluginMeta, kernel: Path) -> int:
    repro = loaded.repro
    sides = (
        ("inputs", repro.inputs, [decl.rank for decl in meta.inputs]),
        ("outputs", repro.outputs, [decl.rank for decl in meta.outputs]),
    )
    hint = "Generate the kernel from this region's own .pt2."
    for side, have, want in sides:
        if len(have) != len(want):
            raise UserError(
                f"the region has {len(have)} {side}, {kernel.name} {len(want)}: it is for another region",
                code="preflight",
                hint=hint,
            )
    for side, have, want in sides:
        for index, (tensor, rank) in enumerate(zip(have, want, strict=True)):
            if len(tensor.shape) != rank:
                raise UserError(
                    f"{side[:-1]} {index} has rank {len(tensor.shape)}, {kernel.name} takes rank {rank}",
                    code="preflight",
                    hint=hint,
                )
    for index, variant in enumerate(meta.variants):
        types = [*variant.inputs, *variant.outputs]
        tensors = [*repro.inputs, *repro.outputs]
        if all(
            kind.dtype is tensor.dtype and kind.format is Format.LINEAR
            for kind, tensor in zip(types, tensors, strict=True)
        ):
            return index
    raise UserError(
        f"no variant of {kernel.name} takes {', '.join(tensor.dtype for tensor in repro.inputs)} (linear)",
        code="preflight",
        hint=f"Its variants: {', '.join(variant.id for variant in meta.variants)}.",
    )
