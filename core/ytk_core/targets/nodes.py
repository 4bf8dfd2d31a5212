"""Facts of one graph node, and the conditions that target rules are made of. Pure: no onnx import."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a rule may ask about a node.

    Attributes:
        op_type: The operator's name.
        domain: ``""`` for standard ONNX.
        opset: The imported opset version of the domain.
        input_ranks: Per input; None where unknown.
        input_dtypes: Per input, as our names (``float32``; also ``int16``, ``string``, ...); None where unknown.
        output_dtypes: Per output; its length is the number of outputs up to the last one used.
        attributes: Name to int, float, str, or a list of these.
        constant_inputs: Index to the value (nested lists or a scalar) of inputs that are constants.
        absent_inputs: Indices of optional inputs that are left out before a later one.
        absent_outputs: Likewise for outputs.
    """

    op_type: str
    domain: str = ""
    opset: int
    input_ranks: Sequence[int | None] = ()
    input_dtypes: Sequence[str | None] = ()
    output_dtypes: Sequence[str | None] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constant_inputs: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    absent_inputs: frozenset[int] = frozenset()
    absent_outputs: frozenset[int] = frozenset()

    def has_input(self, index: int) -> bool:
        """Whether the input is given."""
        return index < max(len(self.input_ranks), len(self.input_dtypes)) and index not in self.absent_inputs

    def has_output(self, index: int) -> bool:
        """Whether the output is used."""
        return index < len(self.output_dtypes) and index not in self.absent_outputs

    def rank(self, index: int) -> int | None:
        """The rank of an input; None where unknown or absent."""
        return self.input_ranks[index] if self.has_input(index) and index < len(self.input_ranks) else None

    def dtype(self, index: int) -> str | None:
        """The dtype of an input; None where unknown or absent."""
        return self.input_dtypes[index] if self.has_input(index) and index < len(self.input_dtypes) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value; byte strings as text."""
        value = self.attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def flat(value: Any) -> Iterable[Any]:
    """Give the elements of nested lists (or arrays), or the scalar itself."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)
    else:
        yield value


def _rank_outside(node: NodeFacts, arg: Any) -> bool:
    rank = node.rank(arg[0])
    return rank is not None and not arg[1] <= rank <= arg[2]


def _axes_not_all(node: NodeFacts, arg: Any) -> bool:
    rank = node.rank(arg[1])
    axes = node.attribute(arg[0])
    return axes is not None and rank is not None and sorted(axis % rank for axis in flat(axes)) != list(range(rank))


# Every condition is "can be shown to hold": what is unknown about a node never fires a rule.
CONDITIONS: dict[str, Callable[[NodeFacts, Any], bool]] = {
    "opset_min": lambda node, arg: node.opset >= arg,
    "has_input": lambda node, arg: node.has_input(arg),
    "input_absent": lambda node, arg: not node.has_input(arg),
    "input_not_constant": lambda node, arg: node.has_input(arg) and arg not in node.constant_inputs,
    "has_output": lambda node, arg: node.has_output(arg),
    "rank_outside": _rank_outside,
    "dtype_in": lambda node, arg: node.dtype(arg[0]) in arg[1],
    "attr_present": lambda node, arg: arg in node.attributes,
    "attr_absent": lambda node, arg: arg not in node.attributes,
    "attr_in": lambda node, arg: node.attribute(arg[0], arg[2]) in arg[1],
    "attr_not_in": lambda node, arg: node.attribute(arg[0], arg[2]) not in arg[1],
    "attr_has_other": lambda node, arg: any(item != arg[1] for item in flat(node.attribute(arg[0], []))),
    "attr_contains": lambda node, arg: arg[1] in str(node.attribute(arg[0], "")),
    "attr_axes_not_all": _axes_not_all,
    "constant_has_other": lambda node, arg: any(item != arg[1] for item in flat(node.constant_inputs.get(arg[0], []))),
    "constant_min": lambda node, arg: any(item >= arg[1] for item in flat(node.constant_inputs.get(arg[0], []))),
}
