"""Sort the sites of one selector into families that one plugin serves.

Sites are alike when they differ in nothing but extents: shapes, and numbers in the operators that follow from shapes
(the sizes of a view, the groups of a depthwise convolution). Such numbers become expressions over the input shapes, so
that one program serves all of them.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from ytk_client.frontend.carve import Port

_FROM_SHAPES = frozenset(
    [
        "size",
        "shape",
        "sizes",
        "repeats",
        "groups",
        "output_size",
        "start",
        "end",
        "length",
        "split_size",
        "split_sizes",
        "normalized_shape",
        "N",
        "C",
        "HxW",
    ]
)
"""Arguments of aten operators that follow from shapes; strides, paddings and dims never do."""
_MAX_FACTOR = 4096

Dims = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Slot:
    """Where a number stands: node of the region, argument, and element of a list (None for a plain number)."""

    node: int
    argument: str
    element: int | None
    from_end: int
    """Distance from the end of its list: tells which axis is likely meant."""


@dataclass(frozen=True)
class Skeleton:
    """A site without the numbers that may follow from shapes."""

    text: str
    slots: tuple[Slot, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class Extent:
    """A product of input extents, times a fraction."""

    factors: tuple[tuple[int, int], ...]
    ratio: Fraction

    def __str__(self) -> str:
        words = [f"in{index}.d{axis}" for index, axis in self.factors]
        words += [str(self.ratio.numerator)] if self.ratio.numerator != 1 else []
        product = "*".join(words)
        return product if self.ratio.denominator == 1 else f"{product}//{self.ratio.denominator}"


def skeleton(
    nodes: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
    ports: Sequence[Port],
    baked: Mapping[torch.fx.Node, str],
) -> Skeleton:
    """Describe a site.

    Args:
        nodes: Its operators in graph order.
        inputs: What enters.
        outputs: What leaves.
        ports: Of inputs, then of outputs.
        baked: Digests of the weights that are part of the region.
    """
    refs = {node: f"in{index}" for index, node in enumerate(inputs)}
    refs |= {node: f"n{index}" for index, node in enumerate(nodes)}
    refs |= {node: f"const:{digest}" for node, digest in baked.items()}
    slots: list[Slot] = []
    values: list[int] = []

    def take(index: int, argument: str, value: Any) -> str:
        if isinstance(value, (list, tuple)) and argument in _FROM_SHAPES:
            return (
                f"[{', '.join(number(index, argument, item, place, len(value)) for place, item in enumerate(value))}]"
            )
        return number(index, argument, value, None, 1) if argument in _FROM_SHAPES else plain(value)

    def number(index: int, argument: str, value: Any, element: int | None, length: int) -> str:
        if type(value) is not int:
            return plain(value)
        slots.append(Slot(index, argument, element, length - (element or 0)))
        values.append(value)
        return "#"

    def plain(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return refs[value]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(plain, value))}]"
        return repr(value)

    lines = [f"{port.dtype}/{len(port.shape)}/{port.role}" for port in ports]
    for index, node in enumerate(nodes):
        words = [f"{name}={take(index, name, value)}" for name, value in named_arguments(node)]
        lines.append(f"{node.target}({', '.join(words)})")
    return Skeleton("; ".join([*lines, *(refs[node] for node in outputs)]), tuple(slots), tuple(values))


def named_arguments(node: torch.fx.Node) -> list[tuple[str, Any]]:
    """Give the arguments of a call by name; defaults that are not written are given too, so that spelling does not matter."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [*((str(index), value) for index, value in enumerate(node.args)), *node.kwargs.items()]
    found = []
    for index, argument in enumerate(schema.arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        found.append((str(argument.name), value))
    return found


def explain(values: Sequence[int], dims: Sequence[Dims], slot: Slot, ranks: Sequence[int]) -> Extent | None:
    """Find one expression over input extents that gives a number at every site, None if there is none.

    Args:
        values: The number at each site.
        dims: Extents by (input, axis) at each site.
        slot: Where it stands.
        ranks: Of the inputs.
    """
    varying = [key for key in dims[0] if len({site[key] for site in dims}) > 1]
    # An axis as far from the end as the number in its list is most likely the one that is meant.
    varying.sort(key=lambda key: (ranks[key[0]] - key[1] != slot.from_end, key))
    candidates = [*((key,) for key in varying), *itertools.combinations(varying, 2)]
    found: list[Extent] = []
    for factors in candidates:
        products = [_product(site[key] for key in factors) for site in dims]
        if 0 in products:
            continue
        ratios = {Fraction(value, product) for value, product in zip(values, products, strict=True)}
        if len(ratios) == 1:
            extent = Extent(factors, ratios.pop())
            if extent.ratio == 1:
                return extent
            if 0 < extent.ratio.numerator <= _MAX_FACTOR and extent.ratio.denominator <= _MAX_FACTOR:
                found.append(extent)
    return found[0] if found else None


def _product(numbers: Any) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def unify(skeletons: Sequence[Skeleton], dims: Sequence[Dims], ranks: Sequence[int]) -> dict[int, Extent] | None:
    """Explain every number that differs between sites; by slot index, None if one cannot be explained."""
    explained: dict[int, Extent] = {}
    for index, values in enumerate(zip(*(each.values for each in skeletons), strict=True)):
        if len(set(values)) > 1:
            extent = explain(values, dims, skeletons[0].slots[index], ranks)
            if extent is None:
                return None
            explained[index] = extent
    return explained


def families(
    skeletons: Sequence[Skeleton], dims: Sequence[Dims], ranks: Callable[[int], Sequence[int]]
) -> list[list[int]]:
    """Partition sites (by index, in order) into families that one program can describe."""
    found: list[list[int]] = []
    for index, each in enumerate(skeletons):
        for family in found:
            if skeletons[family[0]].text != each.text:
                continue
            together = [*family, index]
            if unify([skeletons[i] for i in together], [dims[i] for i in together], ranks(index)) is not None:
                family.append(index)
                break
        else:
            found.append([index])
    return found


def first_difference(left: Skeleton, right: Skeleton) -> str:
    """Say in what two sites differ."""
    for one, other in zip(left.text.split("; "), right.text.split("; "), strict=False):
        if one != other:
            return _difference(one, other)
    for slot, one_value, other_value in zip(left.slots, left.values, right.values, strict=False):
        if one_value != other_value:
            return f"{slot.argument} is {one_value} and {other_value}"
    return "one has more operators"


def _difference(one: str, other: str) -> str:
    """Name the argument in which two lines differ, or the lines."""
    arguments = [dict(re.findall(r"(\w+)=(.*?)(?=, \w+=|\)$)", line)) for line in (one, other)]
    names = [line.partition("(")[0] for line in (one, other)]
    if names[0] == names[1]:
        for name, value in arguments[0].items():
            if value != arguments[1].get(name, value):
                if value.startswith("const:"):
                    return f"the {name} of {names[0]} is another constant"
                return f"{name} of {names[0]} is {value} and {arguments[1][name]}"
    return f"{names[0]} and {names[1]}"


def generalise(body: torch.fx.GraphModule, explained: Mapping[int, Extent], slots: Sequence[Slot]) -> None:
    """Put the expressions in the place of the numbers of the first site."""
    graph = body.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    operators = [
        node for node in graph.nodes if node.op not in {"placeholder", "output"} and "ytk_baked" not in node.meta
    ]
    made: dict[Extent, torch.fx.Node] = {}
    start = inputs[-1]

    def emit(function: Any, *args: Any) -> torch.fx.Node:
        nonlocal start
        with graph.inserting_after(start):
            start = graph.call_function(function, args)
        return start

    for index, extent in explained.items():
        if extent not in made:
            sizes = [emit(torch.ops.aten.sym_size.int, inputs[place], axis) for place, axis in extent.factors]
            value = sizes[0] if len(sizes) == 1 else emit(operator.mul, *sizes)
            if extent.ratio.numerator != 1:
                value = emit(operator.mul, value, extent.ratio.numerator)
            made[extent] = (
                emit(operator.floordiv, value, extent.ratio.denominator) if extent.ratio.denominator != 1 else value
            )
        _assign(operators[slots[index].node], slots[index], made[extent])
    graph.lint()
    body.recompile()


def _assign(node: torch.fx.Node, slot: Slot, value: torch.fx.Node) -> None:
    schema = node.target._schema  # noqa: SLF001 - a schema has no public name
    place = [argument.name for argument in schema.arguments].index(slot.argument)
    if place < len(node.args):
        node.update_arg(place, _replaced(node.args[place], slot.element, value))
    else:
        # A default that is not written holds no number of this site.
        node.update_kwarg(slot.argument, _replaced(node.kwargs.get(slot.argument), slot.element, value))


def _replaced(old: Any, element: int | None, value: torch.fx.Node) -> Any:
    if element is None:
        return value
    items = list(old)
    items[element] = value
    return items
