"""``model.reference.npz``: captured inputs and torch's outputs, several samples, nothing pickled.

Members: ``__ytk__`` (JSON as uint8) and ``sample<i>/in<j>``, ``sample<i>/out<j>``; the order is that of the JSON. bfloat16 arrays
hold their bits (uint16), the JSON has the dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_core.dtypes import DType, storage_dtype
from ytk_core.errors import FormatError, UserError
from ytk_core.formats import codec
from ytk_core.formats.benchmark import BenchmarkRow
from ytk_core.formats.weights_npz import read_arrays, write_weights

SCHEMA_VERSION = 1
_HEADER = "__ytk__"
_HINT = "Make the reference again with `ytk embedded prepare --reference-out`."


class TensorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Name, dtype and shape of a graph input or output; None in ``shape`` is a dynamic extent."""

    name: str
    dtype: DType
    shape: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One set of inputs with the outputs torch gave; bfloat16 as uint16."""

    inputs: dict[str, np.ndarray[Any, Any]]
    outputs: dict[str, np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """What an engine is judged against. ``info``: free JSON (torch version, model path, device, ...)."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    samples: tuple[Sample, ...]
    torch_benchmark: BenchmarkRow | None = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    samples: int
    torch_benchmark: BenchmarkRow | None = None
    info: dict[str, Any] = {}


def _mismatch(info: TensorInfo, array: np.ndarray[Any, Any]) -> str | None:
    if array.dtype != storage_dtype(info.dtype):
        return f"dtype {array.dtype} does not store {info.dtype}"
    if len(info.shape) != array.ndim or any(
        want not in {None, got} for want, got in zip(info.shape, array.shape, strict=True)
    ):
        return f"shape {array.shape} does not match {info.shape}"
    return None


def _check_infos(infos: Sequence[TensorInfo], kind: str, origin: str) -> None:
    names = [info.name for info in infos]
    if twice := {name for name in names if names.count(name) > 1}:
        msg = f"{origin}: the {kind} name {sorted(twice)[0]!r} occurs twice"
        raise FormatError(msg, hint=_HINT)


def _flatten(
    infos: Sequence[TensorInfo], arrays: Mapping[str, np.ndarray[Any, Any]], index: int, kind: str
) -> dict[str, np.ndarray[Any, Any]]:
    if set(arrays) != {info.name for info in infos}:
        msg = f"sample {index}: {kind}put names {sorted(arrays)} differ from {sorted(info.name for info in infos)}"
        raise UserError(msg, code="bad_reference", hint="Give every sample all inputs and outputs.")
    for info in infos:
        if (problem := _mismatch(info, arrays[info.name])) is not None:
            msg = f"sample {index}: {kind}put {info.name!r}: {problem}"
            raise UserError(msg, code="bad_reference", hint="Give arrays in the storage dtype (bfloat16 as uint16).")
    return {f"sample{index}/{kind}{j}": arrays[info.name] for j, info in enumerate(infos)}


def write_reference(path: Path | str, ref: Reference) -> None:
    """Write a reference; the same value gives the same bytes.

    Raises:
        UserError: A sample does not match the declared inputs and outputs, or there is none.
        BoardError: ``disk_full``.
    """
    if not ref.samples or not ref.outputs:
        msg = f"a reference needs samples and outputs; got {len(ref.samples)} and {len(ref.outputs)}"
        raise UserError(msg, code="bad_reference", hint="Capture at least one sample.")
    _check_infos(ref.inputs, "input", str(path))
    _check_infos(ref.outputs, "output", str(path))
    header = _Header(
        schema_version=SCHEMA_VERSION,
        inputs=ref.inputs,
        outputs=ref.outputs,
        samples=len(ref.samples),
        torch_benchmark=ref.torch_benchmark,
        info=ref.info,
    )
    arrays: dict[str, np.ndarray[Any, Any]] = {_HEADER: np.frombuffer(codec.encode(header), dtype=np.uint8)}
    for index, sample in enumerate(ref.samples):
        arrays |= _flatten(ref.inputs, sample.inputs, index, "in")
        arrays |= _flatten(ref.outputs, sample.outputs, index, "out")
    write_weights(path, arrays)


def read_reference(path: Path | str) -> Reference:
    """Read and check a reference.

    Raises:
        FormatError: Not a reference, truncated, pickled, or its arrays do not match its header.
    """
    arrays = read_arrays(path)
    raw = arrays.pop(_HEADER, None)
    if raw is None or raw.dtype != np.uint8:
        msg = f"{path}: no member {_HEADER!r} with the description, so not a reference"
        raise FormatError(
            msg, hint="The first argument of `ytk embedded verify` is the file that `prepare --reference-out` wrote."
        )
    origin = f"{path}: {_HEADER}"
    header = codec.decode(raw.tobytes(), _Header, origin, schema_version=SCHEMA_VERSION, what="reference")
    _check_infos(header.inputs, "input", origin)
    _check_infos(header.outputs, "output", origin)
    if header.samples < 1 or header.samples > len(arrays) or not header.outputs:
        msg = f"{origin}: {header.samples} samples of {len(header.outputs)} outputs, in {len(arrays)} arrays"
        raise FormatError(msg, hint=_HINT)

    def take(infos: Sequence[TensorInfo], index: int, kind: str) -> dict[str, np.ndarray[Any, Any]]:
        taken: dict[str, np.ndarray[Any, Any]] = {}
        for j, info in enumerate(infos):
            member = f"sample{index}/{kind}{j}"
            if member not in arrays:
                msg = f"{path}: no member {member!r} for {kind}put {info.name!r}"
                raise FormatError(msg, hint=_HINT)
            array = arrays.pop(member)
            if (problem := _mismatch(info, array)) is not None:
                msg = f"{path}: {member} ({info.name!r}): {problem}"
                raise FormatError(msg, hint=_HINT)
            taken[info.name] = array
        return taken

    samples = tuple(
        Sample(inputs=take(header.inputs, index, "in"), outputs=take(header.outputs, index, "out"))
        for index in range(header.samples)
    )
    if arrays:
        msg = f"{path}: unknown member {next(iter(arrays))!r}"
        raise FormatError(msg, hint=_HINT)
    return Reference(
        inputs=header.inputs,
        outputs=header.outputs,
        samples=samples,
        torch_benchmark=header.torch_benchmark,
        info=header.info,
    )
