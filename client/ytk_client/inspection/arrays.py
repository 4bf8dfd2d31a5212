"""``.npz`` files: references and weights; nothing pickled is ever read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, dims_text, ordered
from ytk_core.dtypes import DType, bfloat16_to_float32
from ytk_core.formats.reference import Reference, read_reference
from ytk_core.formats.weights_npz import read_index

_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.BFLOAT16})


def inspect_reference(path: Path) -> Inspection:
    """Say what a reference holds; values that no engine can be judged against are findings.

    Raises:
        FormatError: It is not a reference, or damaged.
    """
    reference = read_reference(path)
    rows: tuple[tuple[object, ...], ...] = tuple(
        (side, info.name, info.dtype, dims_text(info.shape))
        for side, infos in (("in", reference.inputs), ("out", reference.outputs))
        for info in infos
    )
    torch_row = reference.torch_benchmark
    return Inspection(
        kind="reference",
        content={
            "inputs": reference.inputs,
            "outputs": reference.outputs,
            "samples": len(reference.samples),
            "torch_benchmark": torch_row,
            "info": reference.info,
        },
        fields=(
            ("samples", len(reference.samples)),
            ("torch time", None if torch_row is None else f"{torch_row.p50_ms:.3f} ms p50 ({torch_row.name})"),
            *((str(key), str(value)) for key, value in reference.info.items() if not isinstance(value, dict | list)),
        ),
        tables=(Table(title="Tensors", columns=("", "NAME", "DTYPE", "SHAPE"), rows=rows),),
        findings=ordered(_reference_findings(reference)),
    )


def _reference_findings(reference: Reference) -> list[Finding]:
    found = []
    for index, sample in enumerate(reference.samples):
        for info in reference.outputs:
            if info.dtype not in _FLOATS:
                continue
            array = sample.outputs[info.name]
            values = bfloat16_to_float32(array) if info.dtype is DType.BFLOAT16 else array
            bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
            if bad:
                found.append(
                    Finding(
                        kind="not-finite",
                        severity=Severity.WARNING if bad < values.size else Severity.ERROR,
                        node=info.name,
                        message=f"sample {index}: {bad} of {values.size} values that torch gave are NaN or infinite",
                        fix="Check the model and its inputs; engines may treat such values in their own way.",
                    )
                )
    if len(reference.samples) == 1:
        found.append(
            Finding(
                kind="samples",
                severity=Severity.NOTE,
                message="one sample only: a difference that depends on values may stay unseen",
                fix="Prepare the model again with --samples 3.",
            )
        )
    return found


def inspect_weights(path: Path) -> Inspection:
    """List the arrays of a weights file.

    Raises:
        FormatError: It is damaged, compressed, or holds pickled data.
    """
    index = read_index(path)
    rows: tuple[tuple[object, ...], ...] = tuple(
        (name, entry.dtype, dims_text(entry.shape), entry.span.length) for name, entry in index.items()
    )
    unaligned = [name for name, entry in index.items() if entry.span.offset % 64 and entry.span.length]
    found = []
    if unaligned:
        found.append(
            Finding(
                kind="alignment",
                severity=Severity.NOTE,
                node=unaligned[0],
                message=f"{len(unaligned)} arrays are not 64-byte aligned, so this file was not written by prepare",
                fix="Nothing, unless an ONNX refers to it: then make it with `ytk embedded prepare`.",
            )
        )
    return Inspection(
        kind="weights",
        content=[
            {
                "name": name,
                "dtype": str(entry.dtype),
                "shape": list(entry.shape),
                "offset": entry.span.offset,
                "length": entry.span.length,
            }
            for name, entry in index.items()
        ],
        fields=(("arrays", len(rows)), ("bytes", sum(entry.span.length for entry in index.values()))),
        tables=(Table(title="Arrays", columns=("NAME", "DTYPE", "SHAPE", "BYTES"), rows=rows),),
        findings=ordered(found),
    )
