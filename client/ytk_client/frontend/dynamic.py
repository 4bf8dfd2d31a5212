"""``--dynamic``: which input axes may differ at run time, and in which range."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_core.errors import UserError
from ytk_core.input_ranges import METADATA_KEY, InputRange, encode_ranges

if TYPE_CHECKING:
    import torch

    from ytk_client.frontend.load_model import LoadedModel

FORM = "INPUT:AXIS=MIN,OPT,MAX"
_TEXT = re.compile(r"(?P<input>\w+):(?P<axis>\d+)=(?P<min>\d+),(?P<opt>\d+),(?P<max>\d+)")


@dataclass(frozen=True)
class DynamicAxis:
    """One axis of one input with its smallest, usual and largest extent; engines are tuned for ``opt``."""

    text: str
    input: str
    axis: int
    min: int
    opt: int
    max: int

    @property
    def traced(self) -> int:
        """The extent to capture at: the usual one, but an extent of 1 would be taken for a constant."""
        return self.opt if self.opt > 1 else self.max


def parse_dynamic(texts: Sequence[str]) -> list[DynamicAxis]:
    """Parse all ``--dynamic`` of a command line.

    Raises:
        UserError: ``bad_dynamic``: not of the form, extents out of order, or an axis given twice.
    """
    found: dict[tuple[str, int], DynamicAxis] = {}
    for text in texts:
        match = _TEXT.fullmatch(text)
        if match is None:
            raise _error(text, f"is not of the form {FORM}")
        axis = DynamicAxis(text, match["input"], *(int(match[key]) for key in ("axis", "min", "opt", "max")))
        if not 1 <= axis.min <= axis.opt <= axis.max:
            raise _error(text, "has extents out of order")
        if axis.min == axis.max:
            raise _error(text, f"allows only the extent {axis.min}, so it is not dynamic")
        if found.setdefault((axis.input, axis.axis), axis) is not axis:
            raise _error(text, "names an axis for the second time")
    return list(found.values())


def _error(text: str, problem: str) -> UserError:
    return UserError(f"--dynamic {text!r} {problem}", code="bad_dynamic", hint="For example x:0=1,4,8.")


def input_names(model: LoadedModel) -> list[str]:
    """Name the inputs in order, as the graph will: an argument's name, keys and indices of nested ones after ``_``."""
    import torch

    from ytk_client.frontend import torch_adapter

    bound = inspect.signature(model.module.forward).bind(*model.args, **model.kwargs)
    paths = torch_adapter.leaf_paths(dict(bound.arguments))
    return [re.sub(r"\W+", "_", "_".join(map(str, path))) for path, leaf in paths if isinstance(leaf, torch.Tensor)]


def resolve(axes: Sequence[DynamicAxis], model: LoadedModel) -> dict[int, list[DynamicAxis]]:
    """Give the dynamic axes by the input's position.

    Raises:
        UserError: ``bad_dynamic``: no such input or axis.
    """
    names = input_names(model)
    found: dict[int, list[DynamicAxis]] = {}
    for each in axes:
        if each.input not in names:
            raise _error(each.text, f"names no input; there are {', '.join(names)}")
        position = names.index(each.input)
        rank = model.flat_args[position].dim()
        if each.axis >= rank:
            raise _error(each.text, f"names axis {each.axis} of an input of rank {rank}")
        found.setdefault(position, []).append(each)
    return found


def at_extents(
    inputs: Sequence[torch.Tensor], axes: dict[int, list[DynamicAxis]], which: str
) -> tuple[torch.Tensor, ...]:
    """Bring inputs to the ``min``, ``traced`` or ``max`` extents, by leaving out or repeating what is there."""
    return tuple(_resized(tensor, axes.get(index, ()), which) for index, tensor in enumerate(inputs))


def _resized(tensor: torch.Tensor, axes: Sequence[DynamicAxis], which: str) -> torch.Tensor:
    import torch

    for each in axes:
        old = tensor.shape[each.axis]
        if old == 0:
            raise _error(each.text, "names an axis that is empty in get_fwd_args()")
        index = torch.arange(getattr(each, which)) % old
        tensor = tensor.index_select(each.axis, index)
    return tensor


def references_within(model: LoadedModel, axes: dict[int, list[DynamicAxis]]) -> list[tuple[torch.Tensor, ...]]:
    """Give the user's further reference inputs.

    Raises:
        UserError: ``model_bad_args``: an extent differs from that of the example inputs and is not dynamic, or is out of its range.
    """
    names = input_names(model) if model.references else []
    for index, reference in enumerate(model.references):
        for position, (have, want) in enumerate(zip(reference, model.flat_args, strict=True)):
            ranges = {each.axis: (each.min, each.max) for each in axes.get(position, ())}
            for axis, (extent, usual) in enumerate(zip(have.shape, want.shape, strict=True)):
                low, high = ranges.get(axis, (usual, usual))
                if not low <= extent <= high:
                    allowed = f"{low} to {high}" if low != high else str(usual)
                    msg = f"get_reference_args() in {model.path}: entry {index}, {names[position]} has extent {extent} on axis {axis}, and {allowed} is allowed"
                    hint = f"Let the axis differ: --dynamic {names[position]}:{axis}=MIN,OPT,MAX."
                    raise UserError(msg, code="model_bad_args", hint=hint)
    return list(model.references)


def export_shapes(model: LoadedModel, axes: dict[int, list[DynamicAxis]]) -> Any:
    """Give ``dynamic_shapes`` for ``torch.export.export``; None where nothing is dynamic."""
    import torch

    if not axes:
        return None
    shapes = torch.export.ShapesCollection()
    flat = model.flat_args
    for position, each in axes.items():
        shapes[flat[position]] = {one.axis: torch.export.Dim.DYNAMIC(min=one.min, max=one.max) for one in each}
    return shapes.dynamic_shapes(model.module, model.args, dict(model.kwargs))


def as_ranges(axes: Sequence[DynamicAxis]) -> list[InputRange]:
    """Give the axes in the words that graphs and jobs carry."""
    return [InputRange(input=each.input, axis=each.axis, min=each.min, opt=each.opt, max=each.max) for each in axes]


def write_ranges(onnx_path: Path, axes: Sequence[DynamicAxis]) -> None:
    """Note the ranges in a graph's metadata: a graph itself says only that an axis is dynamic, a builder needs extents."""
    import onnx

    model = onnx.load(str(onnx_path), load_external_data=False)
    model.metadata_props.add(key=METADATA_KEY, value=encode_ranges(as_ranges(axes)))
    onnx_path.write_bytes(model.SerializeToString())
