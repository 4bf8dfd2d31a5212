"""Ranges of a model's dynamic input axes: written into the graph by ``prepare``, needed by whoever builds an engine of it.

A graph says only that an axis is open. The metadata entry :data:`METADATA_KEY` says from which extent to which, and which one is usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ytk_core.errors import FormatError, UserError

METADATA_KEY = "ytk.dynamic"
"""Of an ONNX model's ``metadata_props``: a JSON list of :class:`InputRange`."""

_HINT = "Give it as --dynamic INPUT:AXIS=MIN,OPT,MAX."


class InputRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One open axis of one input: its smallest, usual and largest extent. Engines are tuned for and measured at ``opt``."""

    input: str
    axis: int
    min: int
    opt: int
    max: int


def decode_ranges(text: str | bytes, origin: str) -> tuple[InputRange, ...]:
    """Read a metadata entry.

    Raises:
        FormatError: ``bad_ranges``: it is no such list, extents are out of order, or an axis comes twice.
    """
    try:
        ranges = msgspec.json.decode(text, type=tuple[InputRange, ...])
    except msgspec.MsgspecError as err:
        raise _damaged(origin, str(err)) from err
    for each in ranges:
        if not (each.axis >= 0 and 0 <= each.min <= each.opt <= each.max):
            raise _damaged(origin, f"{each.input}:{each.axis} has extents {each.min}, {each.opt}, {each.max}")
    if len({(each.input, each.axis) for each in ranges}) != len(ranges):
        raise _damaged(origin, "an axis comes twice")
    return ranges


def _damaged(origin: str, why: str) -> FormatError:
    return FormatError(
        f"{origin}: its ranges of dynamic axes are damaged: {why}",
        code="bad_ranges",
        hint="Make it again with `ytk embedded prepare --dynamic`.",
    )


def encode_ranges(ranges: Iterable[InputRange]) -> str:
    """Write a metadata entry."""
    return msgspec.json.encode(list(ranges)).decode()


def check_ranges(
    ranges: Sequence[InputRange],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    origin: str,
    *,
    all_open: bool,
) -> None:
    """Hold ranges against the inputs of a model.

    Args:
        ranges: What is known.
        inputs: The dims of each input; an int is fixed, anything else is open; None where not even the rank is known.
        origin: The model, for messages.
        all_open: Every open axis needs a range (an engine of TensorRT has an optimisation profile for each).

    Raises:
        UserError: ``bad_dynamic``: a range is of no open axis; ``dynamic_without_range``.
    """
    for each in ranges:
        if each.input not in inputs:
            raise _error(f"{origin} has no input {each.input!r}; it has {', '.join(inputs)}", "bad_dynamic")
        dims = inputs[each.input]
        if dims is None:
            continue
        if each.axis >= len(dims):
            raise _error(f"{origin}: input {each.input!r} has rank {len(dims)}, so no axis {each.axis}", "bad_dynamic")
        fixed = dims[each.axis]
        if isinstance(fixed, int):
            raise _error(f"{origin}: axis {each.axis} of input {each.input!r} is fixed at {fixed}", "bad_dynamic")
    known = {(each.input, each.axis) for each in ranges}
    missing = [
        f"{name}:{axis}"
        for name, dims in inputs.items()
        for axis, dim in enumerate(dims or ())
        if not isinstance(dim, int) and (name, axis) not in known
    ]
    if missing and all_open:
        msg = f"{origin} has open axes without a range: {', '.join(missing)}; the engine is built for a range of each"
        raise _error(msg, "dynamic_without_range")


def _error(message: str, code: str) -> UserError:
    return UserError(message, code=code, hint=_HINT)


def usual_extents(ranges: Iterable[InputRange]) -> dict[tuple[str, int], int]:
    """Give the usual extent by input and axis."""
    return {(each.input, each.axis): each.opt for each in ranges}
