"""From an engine's layers to the modules of the model: where the time of an engine goes.

``profile.json`` says which nodes of the graph a layer stands for, ``fx_nodes.json`` which module each of them came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ytk_core.errors import FormatError, UserError
from ytk_core.formats.benchmark import PLUGIN_EXEC_TYPE, LayerTime
from ytk_core.formats.prepare_outputs import FxNode

ENGINE = "(engine)"
"""Owner of a layer that stands for no node of the graph: the engine put it in."""
GAP = "(between layers)"
"""Owner of the time that no layer accounts for."""
TOP = "(top)"
"""The model itself: forward() of the outermost module."""


class EngineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of an engine, and how long a run took that had them measured, in ms."""

    layers: tuple[LayerTime, ...]
    end_to_end_ms: float
    gap_ms: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one module (or class, or layer) takes: mean time of a run in ms, in so many layers."""

    owner: str
    module_class: str
    layers: int
    ms: float
    plugins: tuple[str, ...]


def engine_times(profile: Any, origin: str) -> EngineTimes:
    """Read the member ``profile.json`` of an engine bundle.

    Args:
        profile: Its JSON.
        origin: The bundle, for messages.

    Raises:
        FormatError: ``bad_profile``: it is not what it should be.
    """
    try:
        return msgspec.convert(profile, EngineTimes)
    except msgspec.ValidationError as err:
        msg = f"{origin}: its profile cannot be read: {err}"
        raise FormatError(msg, code="bad_profile", hint="Build the bundle again with `ytk embedded compile`.") from err


def module_of(nodes: Iterable[str], owners: Mapping[str, Sequence[str]]) -> str | None:
    """Give the module that a layer belongs to: the innermost one around everything that it stands for.

    Args:
        nodes: The graph's nodes of the layer.
        owners: Module paths by node; "" is the model itself.

    Returns:
        The path, None where nothing is known of any node.
    """
    paths = [path for node in nodes for path in owners.get(node, ())]
    if not paths:
        return None
    common = paths[0].split(".")
    for path in paths[1:]:
        parts = path.split(".")
        same = next((at for at, pair in enumerate(zip(common, parts, strict=False)) if pair[0] != pair[1]), None)
        common = common[: min(len(common), len(parts)) if same is None else same]
    return ".".join(common)


def by_module(times: EngineTimes, nodes: Iterable[FxNode], *, depth: int = 0) -> list[Share]:
    """Give the time of each module, the most first; the sum of all is the time of a run.

    Args:
        times: Of the engine.
        nodes: Of ``fx_nodes.json``, of the model that the engine was built from.
        depth: Add up below so many names of a path; 0 tells all apart.

    Raises:
        UserError: ``foreign_fx_nodes``: no layer stands for any of these nodes, so they are of another model.
    """
    owners: dict[str, list[str]] = {}
    classes = {"": ""}
    for node in nodes:
        classes.setdefault(node.module_path, node.module_class.rsplit(".", 1)[-1])
        for onnx_node in node.onnx_nodes:
            owners.setdefault(onnx_node, []).append(node.module_path)
    named = [name for layer in times.layers for name in layer.onnx_nodes]
    if named and not any(name in owners for name in named):
        msg = f"none of the engine's nodes ({', '.join(named[:3])}, ...) is in fx_nodes.json: it is of another model"
        hint = "Give the fx_nodes.json that prepare wrote beside the model of this engine with --fx-nodes."
        raise UserError(msg, code="foreign_fx_nodes", hint=hint)
    groups: dict[str, list[LayerTime]] = {}
    for layer in times.layers:
        path = module_of(layer.onnx_nodes, owners)
        groups.setdefault(ENGINE if path is None else _cut(path, depth) or TOP, []).append(layer)
    shares = [_share(owner, classes.get(owner, ""), layers) for owner, layers in groups.items()]
    if times.gap_ms > 0:
        shares.append(Share(owner=GAP, module_class="", layers=0, ms=times.gap_ms, plugins=()))
    return sorted(shares, key=lambda each: (-each.ms, each.owner))


def by_layer(times: EngineTimes) -> list[Share]:
    """Give the time of each layer, the most first."""
    shares = [_share(layer.name, layer.type, [layer]) for layer in times.layers]
    return sorted(shares, key=lambda each: (-each.ms, each.owner))


def _share(owner: str, module_class: str, layers: Sequence[LayerTime]) -> Share:
    plugins = tuple(dict.fromkeys(layer.type for layer in layers if layer.exec_type == PLUGIN_EXEC_TYPE))
    return Share(
        owner=owner,
        module_class=module_class,
        layers=len(layers),
        ms=sum(layer.ms for layer in layers),
        plugins=plugins,
    )


def _cut(path: str, depth: int) -> str:
    return ".".join(path.split(".")[:depth]) if depth else path
