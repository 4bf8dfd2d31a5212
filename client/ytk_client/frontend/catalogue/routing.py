"""Which shipped plugin stands for an operator of a captured program, and with what."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ytk_client.frontend.catalogue import operators as _registered  # noqa: F401 - a program with them must load them
from ytk_client.frontend.catalogue.foreign import adopt
from ytk_core.catalogue import NAMESPACE, Entry, by_operator, plain_attributes
from ytk_core.formats.prepare_outputs import PluginRow

if TYPE_CHECKING:
    from ytk_client.frontend.carve import CarvedRegion


@dataclass(frozen=True)
class Shipped:
    """A plugin of the catalogue at one place. ``attributes`` go onto the node, by name; lists of one type."""

    entry: Entry
    attributes: dict[str, list[int] | list[float]]
    namespace: str = NAMESPACE

    @property
    def plugin(self) -> tuple[str, tuple[tuple[int | float, ...], ...]]:
        """What tells plugins of one entry apart: the attributes that decide an output's extents."""
        return self.entry.name, tuple(tuple(self.attributes[name]) for name in self.entry.shaping)


def shipped_plugin(node: torch.fx.Node) -> Shipped | None:
    """Give the plugin for a refused operator, None if the catalogue has none.

    An operator of another library that an entry computes is first written as the entry's own, in place.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - the class has no public name
        return None
    if node.target.namespace != NAMESPACE and not adopt(node):
        return None
    entry = by_operator(node.target._schema.name.split("::")[1])  # noqa: SLF001 - the only way to the names of its arguments
    if entry is None:
        return None
    given = _arguments(node)
    settings = {name: value for name, value in given.items() if name in {*entry.ints, *entry.floats}}
    if not all(_is_static(value) for value in settings.values()):
        return None
    return Shipped(entry, plain_attributes(settings))


def ports_of(node: torch.fx.Node, entry: Entry) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Give the nodes that enter the plugin, and those that stand for its outputs, in the plugin's order.

    Outputs that the program does not use get a node too: a plugin has all of its outputs.
    """
    given = _arguments(node)
    inputs = [given[tensor.name] for tensor in entry.inputs]
    if len(entry.outputs) == 1:
        return inputs, [node]
    taken = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    for index in range(len(entry.outputs)):
        if index not in taken:
            with node.graph.inserting_after(node):
                taken[index] = node.graph.call_function(operator.getitem, (node, index))
            taken[index].meta = {**node.meta, "val": node.meta["val"][index]}
    return inputs, [taken[index] for index in range(len(entry.outputs))]


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]  # noqa: SLF001 - as above
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _is_static(value: Any) -> bool:
    items = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(each, (bool, int, float)) for each in items)


def shipped_rows(regions: Iterable[CarvedRegion]) -> list[PluginRow]:
    """Give the lines of the plugin table for the shipped plugins among a program's regions, one per plugin."""
    groups: dict[str, list[CarvedRegion]] = {}
    for region in regions:
        if region.shipped is not None and region.sites:
            groups.setdefault(region.placeholder, []).append(region)
    return [
        PluginRow(
            name=group[0].name,
            has_plugin=True,
            placeholder=placeholder,
            gaia_input=None,
            sites=sum(len(region.sites) for region in group),
            namespace=group[0].namespace,
            version=group[0].version,
        )
        for placeholder, group in groups.items()
    ]
