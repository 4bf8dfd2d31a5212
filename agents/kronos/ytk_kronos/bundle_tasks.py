"""The trusted tasks: they open and assemble bundles and judge outputs, and never load native code of others.

What a sandboxed task left is data to them: decoded strictly, links refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_core.accuracy import compare
from ytk_core.agent.files import check_output
from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_file
from ytk_core.errors import UserError
from ytk_core.formats import codec
from ytk_core.formats.engine_bundle import (
    EngineManifest,
    PluginEntry,
    extract_engine_bundle,
    read_manifest,
    write_engine_bundle,
)
from ytk_core.formats.plugin_manifest import SUFFIX
from ytk_core.formats.reference import Reference, read_reference
from ytk_core.formats.verify_report import OutputAccuracy, VerifyReport, write_verify_report
from ytk_core.formats.weights_npz import read_arrays, write_weights
from ytk_kronos import checks, engine_files, hostlib
from ytk_kronos.task_types import (
    BUNDLE,
    INPUTS,
    OUT,
    OUTPUTS,
    RUN,
    RUN_SCHEMA_VERSION,
    VERIFY,
    BuildTask,
    OpenTask,
    ReassembleTask,
    RunFile,
    VerifyTask,
    decode,
    sample_key,
)

_MEASURED = (engine_files.LAYERS_MEMBER, engine_files.PROFILE_MEMBER, engine_files.BENCHMARK_MEMBER)


def open_bundle(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Check a bundle against this worker, unpack it, and put a reference's inputs beside it as ``inputs.npz``.

    Args:
        task: A :class:`ytk_kronos.task_types.OpenTask`.
        workdir: The work directory.

    Raises:
        FormatError: Not a bundle or not a reference.
        UserError: This worker cannot run it.
    """
    spec = decode(task, OpenTask)
    bundle, dest = workdir / spec.bundle, workdir / spec.dest
    manifest = read_manifest(bundle)
    checks.check_bundle(manifest, "the bundle")
    dest.parent.mkdir(parents=True, exist_ok=True)
    extract_engine_bundle(bundle, dest)
    if spec.reference is not None:
        reference = read_reference(workdir / spec.reference)
        _check_same_model(reference, engine_files.read_layers(dest / engine_files.LAYERS_MEMBER))
        inputs = {
            sample_key(index, name): array
            for index, sample in enumerate(reference.samples)
            for name, array in sample.inputs.items()
        }
        write_weights(dest.parent / INPUTS, inputs)
    return {"plugins": len(manifest.plugins)}


def assemble_bundle(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Make ``engine.tgz`` from what ``build_engine`` left and the very inputs it was given.

    Args:
        task: The :class:`ytk_kronos.task_types.BuildTask` of ``build_engine``.
        workdir: The work directory.

    Raises:
        FormatError: What it left is not what it should be.
        CandidateError: ``bad_output``: it left links.
    """
    spec = decode(task, BuildTask)
    arch = ArchSpec.parse(spec.arch)
    members = _left_behind(workdir / OUT, workdir, (*_MEASURED, engine_files.LOG_MEMBER, engine_files.ENGINE_MEMBER))
    taken = engine_files.read_benchmark(members[engine_files.BENCHMARK_MEMBER])
    entries: list[PluginEntry] = []
    for index, each in enumerate(spec.plugins):
        plugin = checks.check_plugin(workdir / each.file, workdir / each.manifest, arch)
        file = plugin.file
        # Numbered: plugins of two namespaces may have one name.
        member = f"plugins/{index:02d}-{file.name}.so"
        members |= {member: plugin.path, f"{member}{SUFFIX}": workdir / each.manifest}
        entries.append(
            PluginEntry(
                file=member,
                digest=plugin.digest,
                namespace=file.namespace,
                name=file.name,
                version=file.version,
                signed_by=each.signed_by or msgspec.UNSET,
                target_verified=msgspec.UNSET if plugin.manifest.target_verified else False,
            )
        )
    manifest = EngineManifest(
        arch_spec=spec.arch,
        engine_name=arch.engine_name,
        engine_version=hostlib.openvino_version(),
        precision=spec.precision,
        onnx_digest=digest_file(workdir / spec.model),
        npz_digest=digest_file(workdir / spec.weights) if spec.weights else None,
        plugins=tuple(entries),
        flags={"threads": spec.measuring.threads},
        conditions=taken.conditions,
        device_uid=spec.measuring.device_uid,
    )
    write_engine_bundle(workdir / BUNDLE, manifest, members)
    return _summary(taken) | {"plugins": [msgspec.to_builtins(entry) for entry in entries]}


def reassemble_bundle(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Make ``engine.tgz`` from an unpacked bundle with the measurements that ``profile_engine`` left.

    Args:
        task: A :class:`ytk_kronos.task_types.ReassembleTask`.
        workdir: The work directory.

    Raises:
        FormatError: What it left is not what it should be.
        CandidateError: ``bad_output``: it left links.
    """
    spec = decode(task, ReassembleTask)
    root = workdir / spec.bundle_dir
    manifest = read_manifest(workdir / spec.bundle)
    fresh = _left_behind(workdir / spec.fresh, workdir, _MEASURED)
    taken = engine_files.read_benchmark(fresh[engine_files.BENCHMARK_MEMBER])
    manifest = msgspec.structs.replace(
        manifest,
        conditions=taken.conditions,
        device_uid=taken.conditions.device_uid,
        flags=manifest.flags | {"threads": taken.conditions.threads},
    )
    write_engine_bundle(workdir / BUNDLE, manifest, {entry.name: root / entry.name for entry in manifest.files} | fresh)
    return _summary(taken) | {"plugins": [msgspec.to_builtins(entry) for entry in manifest.plugins]}


def verify_outputs(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Judge what ``run_samples`` left against the reference; leaves ``verify.json``.

    Args:
        task: A :class:`ytk_kronos.task_types.VerifyTask`.
        workdir: The work directory.

    Raises:
        FormatError: The reference or the results are not what they should be.
        UserError: ``reference_mismatch``: the engine has other outputs than the reference; a tolerance is not usable.
    """
    spec = decode(task, VerifyTask)
    bundle = workdir / spec.bundle
    manifest = read_manifest(bundle)
    reference = read_reference(workdir / spec.reference)
    left = _left_behind(workdir / spec.results, workdir, (RUN, OUTPUTS))
    text = codec.read_bytes(left[RUN], "run result")
    ran = codec.decode(text, RunFile, RUN, schema_version=RUN_SCHEMA_VERSION, what="run result")
    report = VerifyReport(
        bundle_digest=digest_file(bundle),
        arch_spec=manifest.arch_spec,
        engine_name=manifest.engine_name,
        engine_version=manifest.engine_version,
        precision=manifest.precision,
        outputs=_judge(reference, read_arrays(left[OUTPUTS]), manifest.precision, spec),
        benchmark=ran.benchmark.row,
        torch_benchmark=reference.torch_benchmark,
        conditions=ran.benchmark.conditions,
        plugins=ran.plugins,
    )
    write_verify_report(workdir / VERIFY, report)
    failed = sum(not output.ok for output in report.outputs)
    return _summary(ran.benchmark) | {"ok": report.ok, "outputs": len(report.outputs), "failed": failed}


def _summary(taken: engine_files.BenchmarkFile) -> dict[str, Any]:
    return {
        "benchmark": msgspec.to_builtins(taken.row),
        "stable": taken.conditions.stable,
        "reason": taken.conditions.reason,
    }


def _judge(
    reference: Reference, arrays: dict[str, np.ndarray[Any, Any]], precision: str, spec: VerifyTask
) -> tuple[OutputAccuracy, ...]:
    verdicts: list[OutputAccuracy] = []
    for index, sample in enumerate(reference.samples):
        for info in reference.outputs:
            got = arrays.get(sample_key(index, info.name))
            if got is None:
                raise UserError(
                    f"the engine gave no output {info.name!r} for sample {index}",
                    code="reference_mismatch",
                    hint="Use the reference that prepare wrote together with this model.",
                )
            verdicts.append(
                compare(
                    info.name,
                    got,
                    sample.outputs[info.name],
                    dtype=info.dtype,
                    precision=precision,
                    sample=index,
                    rtol=spec.rtol,
                    atol=spec.atol,
                )
            )
    return tuple(verdicts)


def _check_same_model(reference: Reference, layers: engine_files.LayersFile) -> None:
    """Refuse a reference of another model before the engine is run."""
    for what, mine, theirs in (
        ("inputs", layers.inputs, reference.inputs),
        ("outputs", layers.outputs, reference.outputs),
    ):
        engine, given = sorted(info.name for info in mine), sorted(info.name for info in theirs)
        if engine != given:
            raise UserError(
                f"the engine's {what} are {engine}, the reference's are {given}",
                code="reference_mismatch",
                hint="Use the reference that prepare wrote together with this model.",
            )


def _left_behind(directory: Path, workdir: Path, names: tuple[str, ...]) -> dict[str, Path]:
    """Give the files that a sandboxed task left, each a plain file inside the work directory."""
    found = {name: directory / name for name in names}
    for path in found.values():
        check_output(path, workdir)
    return found
