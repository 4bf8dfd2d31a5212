"""Nested arguments and results as JSON, with tensors by name: what forward takes is a tree of tensors and plain values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from ytk_core.errors import UserError

_PLAIN = (bool, int, float, str, type(None))


def encode(value: Any, where: str, add: Callable[[Any], str], is_tensor: Callable[[Any], bool]) -> Any:
    """Give a value as JSON.

    Args:
        value: Tensors, plain values, and lists, tuples, dicts and named tuples of these.
        where: For messages.
        add: Stores a tensor and gives its name.
        is_tensor: Tells tensors from the rest.

    Raises:
        UserError: ``cannot_capture``: something else is in it.
    """
    if is_tensor(value):
        return {"tensor": add(value)}
    if isinstance(value, _PLAIN):
        # JSON has no word for NaN and the infinities.
        return {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else {"value": value}
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{where}[{index}]", add, is_tensor) for index, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, f"{where}[{key!r}]", add, is_tensor) for key, item in value.items()}}
    raise UserError(
        f"{where} is {type(value).__module__}.{type(value).__qualname__}, which a repro cannot hold",
        code="cannot_capture",
        hint="Capture a module further inside, whose arguments are tensors, numbers, texts, and lists or dicts of these.",
    )


def decode(tree: Any, tensors: Mapping[str, Any]) -> Any:
    """Give back the value of :func:`encode`.

    Raises:
        UserError: ``bad_repro``: the tree is malformed.
    """
    match tree:
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"value": value} if isinstance(value, _PLAIN):
            return value
        case {"float": str(text)}:
            return float(text)
        case {"list": list(items)}:
            return [decode(item, tensors) for item in items]
        case {"tuple": list(items)}:
            return tuple(decode(item, tensors) for item in items)
        case {"dict": dict(items)}:
            return {key: decode(item, tensors) for key, item in items.items()}
    raise UserError(f"the call {str(tree)[:80]} is malformed", code="bad_repro", hint="Capture it again.")


def flat_tensors(value: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Give the tensors in what a module returned, in order; dataclasses (ModelOutput and the like) are looked into."""
    if is_tensor(value):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in flat_tensors(item, is_tensor)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flat_tensors(item, is_tensor)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return [tensor for item in fields for tensor in flat_tensors(item, is_tensor)]
    return []
