"""The evaluation task: what goes in, what must come out, how far off is still right. Written by the generator, read by the judge.

``task.json`` is a :class:`TaskSpec`; ``task.npz`` (plain, nothing pickled) holds ``in_<sample>_<input>`` in storage dtype,
``out_<sample>_<output>`` (float64 for floating-point outputs, else the output's own dtype), and ``skip_<sample>_<output>`` (bool)
where elements of an output cannot be judged because the computation is discontinuous there.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_core.dtypes import DType, storage_dtype
from ytk_core.errors import FormatError
from ytk_core.formats.plugin_meta import Extent

SCHEMA_VERSION = 2
FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})

Array = np.ndarray[Any, Any]


class TaskTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tensor at the kernel's border. ``shape``: captured; ``dynamic_axes``: where a sample may have another extent."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    dynamic_axes: tuple[int, ...] = ()


class SampleShapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shapes of one sample whose extents are not the captured ones."""

    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


class SampleLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One sample.

    ``timed``: random ones of the captured shape are timed, all others warm up; all are judged. ``atol``, ``rtol``: per output.
    ``open_range``: per output the least and the largest integer that an element may be that is not judged (one of several equal
    values came first); None: those of the expected output; empty: None for all.
    """

    name: str
    timed: bool
    atol: tuple[float, ...]
    rtol: tuple[float, ...]
    shapes: SampleShapes | None = None
    open_range: tuple[tuple[int, int] | None, ...] = ()


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything about a task but its arrays."""

    region_digest: str
    inputs: tuple[TaskTensor, ...]
    outputs: tuple[TaskTensor, ...]
    samples: tuple[SampleLimits, ...]
    expectation: str
    """Precision that the expected outputs were computed in."""
    tolerance_source: str
    notes: tuple[str, ...] = ()
    rounds: int = 2
    """Fresh processes per candidate before the last comparison; each times every timed sample once."""
    must_read_bytes: int = 0
    """Of the inputs, what every right kernel reads at least once (at the captured shape)."""
    extents: tuple[Extent, ...] = ()
    """Of each dynamic input axis, the range that the samples span."""
    schema_version: int = SCHEMA_VERSION

    def at(self, sample: int) -> TaskSpec:
        """Give the same with every tensor in the shape that it has in a sample."""
        shapes = self.samples[sample].shapes
        if shapes is None:
            return self
        return msgspec.structs.replace(
            self,
            inputs=_reshaped(self.inputs, shapes.inputs),
            outputs=_reshaped(self.outputs, shapes.outputs),
        )

    def groups(self) -> list[list[int]]:
        """Give the samples of equal shapes together; the group that is timed comes first."""
        found: dict[SampleShapes | None, list[int]] = {None: []}
        for index, sample in enumerate(self.samples):
            found.setdefault(sample.shapes, []).append(index)
        return [group for group in found.values() if group]


def _reshaped(tensors: Sequence[TaskTensor], shapes: Sequence[tuple[int, ...]]) -> tuple[TaskTensor, ...]:
    return tuple(msgspec.structs.replace(t, shape=shape) for t, shape in zip(tensors, shapes, strict=True))


@dataclass(frozen=True)
class Sample:
    """Arrays of one sample. ``skip``: output index to mask of elements that are not judged."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    skip: dict[int, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A task in memory."""

    spec: TaskSpec
    samples: tuple[Sample, ...]


def expected_dtype(dtype: DType) -> np.dtype[Any]:
    """Give the dtype that expected outputs are stored in."""
    return np.dtype(np.float64) if dtype in FLOATS else storage_dtype(dtype)


def write_task(directory: Path, task: Task) -> None:
    """Write ``task.json`` and ``task.npz`` into an existing directory."""
    arrays: dict[str, Array] = {}
    for s, sample in enumerate(task.samples):
        arrays |= {f"in_{s}_{i}": a for i, a in enumerate(sample.inputs)}
        arrays |= {f"out_{s}_{o}": a for o, a in enumerate(sample.outputs)}
        arrays |= {f"skip_{s}_{o}": a for o, a in sample.skip.items()}
    np.savez(directory / "task.npz", allow_pickle=False, **arrays)
    (directory / "task.json").write_bytes(msgspec.json.format(msgspec.json.encode(task.spec), indent=1))


def _decode(text: bytes, origin: str) -> TaskSpec:
    try:
        version = json.loads(text).get("schema_version")
        if version != SCHEMA_VERSION:
            raise _bad(origin, f"schema_version {version!r}, this software reads {SCHEMA_VERSION}")
        spec = msgspec.json.decode(text, type=TaskSpec)
    except (ValueError, AttributeError, msgspec.ValidationError) as err:
        raise _bad(origin, str(err)) from err
    for sample in spec.samples:
        if len(sample.atol) != len(spec.outputs) or len(sample.rtol) != len(spec.outputs):
            raise _bad(origin, f"sample {sample.name} has limits for {len(sample.atol)} of {len(spec.outputs)} outputs")
        if sample.open_range and len(sample.open_range) != len(spec.outputs):
            raise _bad(
                origin, f"sample {sample.name} has ranges for {len(sample.open_range)} of {len(spec.outputs)} outputs"
            )
        shapes = sample.shapes
        if shapes and (len(shapes.inputs), len(shapes.outputs)) != (len(spec.inputs), len(spec.outputs)):
            raise _bad(
                origin,
                f"sample {sample.name} has shapes for {len(shapes.inputs)} inputs, {len(shapes.outputs)} outputs",
            )
    if not spec.samples or not spec.inputs or not spec.outputs:
        raise _bad(origin, "no samples, inputs or outputs")
    return spec


def _bad(origin: str, problem: str) -> FormatError:
    return FormatError(f"{origin}: not an evaluation task: {problem}", code="bad_task", hint="Generate the task again.")


def _take(archive: Any, name: str, shape: Sequence[int], dtype: np.dtype[Any], origin: str) -> Array:
    if name not in archive.files:
        raise _bad(origin, f"member {name} is missing")
    array: Array = archive[name]
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise _bad(origin, f"{name} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}")
    return np.ascontiguousarray(array).reshape(shape)  # ascontiguousarray makes a 0-d array 1-d


def read_task(directory: Path) -> Task:
    """Read a task.

    Raises:
        FormatError: A file is missing, malformed, or the arrays do not fit the spec.
    """
    origin = str(directory / "task.json")
    try:
        spec = _decode((directory / "task.json").read_bytes(), origin)
        with np.load(directory / "task.npz", allow_pickle=False) as archive:
            samples = tuple(_read_sample(archive, spec, s) for s in range(len(spec.samples)))
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as err:
        raise _bad(origin, str(err)) from err
    return Task(spec, samples)


def write_variant_tasks(directory: Path, tasks: Sequence[Task]) -> None:
    """Write the tasks of all variants of a kernel: the first where a single one is, others below ``variants/<number>``."""
    write_task(directory, tasks[0])
    for variant, task in enumerate(tasks[1:], start=1):
        (directory / "variants" / str(variant)).mkdir(parents=True, exist_ok=True)
        write_task(directory / "variants" / str(variant), task)


def read_variant_tasks(directory: Path) -> dict[int, Task]:
    """Read what :func:`write_variant_tasks` wrote, by number of the variant.

    Raises:
        FormatError: See :func:`read_task`.
    """
    found = {0: read_task(directory)}
    for path in sorted((directory / "variants").glob("*")):
        if path.name.isdigit():
            found[int(path.name)] = read_task(path)
    return found


def _read_sample(archive: Any, spec: TaskSpec, s: int) -> Sample:
    spec = spec.at(s)
    inputs = tuple(
        _take(archive, f"in_{s}_{i}", t.shape, storage_dtype(t.dtype), "task.npz") for i, t in enumerate(spec.inputs)
    )
    outputs = tuple(
        _take(archive, f"out_{s}_{o}", t.shape, expected_dtype(t.dtype), "task.npz") for o, t in enumerate(spec.outputs)
    )
    skip = {
        o: _take(archive, f"skip_{s}_{o}", t.shape, np.dtype(np.bool_), "task.npz")
        for o, t in enumerate(spec.outputs)
        if f"skip_{s}_{o}" in archive.files
    }
    return Sample(inputs, outputs, skip)
