"""The plugins we ship: what models need and no engine has, with kernels for CPUs and for TensorRT.

``prepare`` puts a node of :data:`NAMESPACE` where a model needs one, ``compile`` builds the plugin from here. Decision
0010 says why the catalogue lies in this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ytk_core.catalogue.contract import KERNEL_VERSION, NAMESPACE, Entry, Tensor
from ytk_core.catalogue.entries import ENTRIES
from ytk_core.errors import UserError
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.node_contracts import NodeContract

__all__ = [
    "ENTRIES",
    "KERNEL_VERSION",
    "NAMESPACE",
    "Entry",
    "Tensor",
    "bundles_for",
    "by_operator",
    "entry_of",
    "plain_attributes",
]

_NUMBERED = re.compile(r"_\d+$")


def by_operator(operator: str) -> Entry | None:
    """Give the entry of a torch operator of the namespace ``ytk_catalogue``, None if there is none."""
    return next((entry for entry in ENTRIES if entry.operator == operator), None)


def entry_of(plugin_name: str) -> Entry:
    """Give the entry that a plugin name of :data:`NAMESPACE` stands for: ``SparseToDense``, ``SparseToDense_1`` ...

    Raises:
        UserError: ``unknown_catalogue_plugin``: this release ships no such plugin.
    """
    base = _NUMBERED.sub("", plugin_name)
    found = next((entry for entry in ENTRIES if entry.name == base), None)
    if found is None:
        msg = f"the model needs the shipped plugin {NAMESPACE}::{plugin_name}, which this release does not have"
        hint = f"It has {', '.join(entry.name for entry in ENTRIES)}. Use the release that prepared the model, or prepare it again."
        raise UserError(msg, code="unknown_catalogue_plugin", hint=hint)
    return found


def bundles_for(nodes: Iterable[NodeContract], target: DeploymentTarget) -> dict[str, KernelBundle]:
    """Give the kernel bundle of every shipped plugin that a model needs, by plugin name, in order of first use.

    Args:
        nodes: The model's custom nodes; those of other namespaces are left alone.
        target: CPU or TensorRT.

    Raises:
        UserError: ``unknown_catalogue_plugin``, ``bad_catalogue_node``: also where nodes of one name need different
            output extents.
    """
    groups: dict[str, list[NodeContract]] = {}
    for node in nodes:
        if node.namespace == NAMESPACE:
            groups.setdefault(node.name, []).append(node)
    found = {}
    for name, group in groups.items():
        entry = entry_of(name)
        metas = [entry.meta(target, node.attributes, name=name, sites=len(group)) for node in group]
        if any(meta != metas[0] for meta in metas):
            msg = f"two nodes of {NAMESPACE}::{name} have different {', '.join(entry.shaping)}: {group[0].node_name} and another"
            raise UserError(msg, code="bad_catalogue_node", hint="Make the model again with `ytk embedded prepare`.")
        found[name] = entry.bundle(target, group[0].attributes, name=name, sites=len(group))
    return found


def plain_attributes(values: Mapping[str, Any]) -> dict[str, list[int] | list[float]]:
    """Give attributes as a node carries them: lists of integers or of floats; booleans are 0 and 1."""
    found: dict[str, list[int] | list[float]] = {}
    for name, value in values.items():
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        found[name] = (
            [float(each) for each in items]
            if any(isinstance(each, float) for each in items)
            else [int(each) for each in items]
        )
    return found
