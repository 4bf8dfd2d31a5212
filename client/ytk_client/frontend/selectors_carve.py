"""Carve what ``--plugin`` selects: find the sites, lift weights, sort them into families, put placeholders in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.carve import CanVary, Carver, Port, extract_body, make_region
from ytk_client.frontend.growth import Border
from ytk_client.frontend.refusals import Refusal
from ytk_client.frontend.selectors import Lift, Selector, Where
from ytk_client.frontend.selectors_around import is_heavy, is_plumbing
from ytk_client.frontend.selectors_family import (
    Skeleton,
    families,
    first_difference,
    generalise,
    skeleton,
    unify,
)
from ytk_client.frontend.selectors_lift import lift_weights
from ytk_client.frontend.selectors_match import Match, find_sites
from ytk_core.digests import digest_bytes
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Role
from ytk_core.formats.prepare_outputs import CandidateReason

__all__ = ["Selection", "carve_selected", "find_and_lift"]


@dataclass(frozen=True)
class Selection:
    """The sites of all selectors, weights lifted; the program is ready to be carved."""

    matches: list[Match]
    notes: list[str]


@dataclass(frozen=True)
class _Site:
    match: Match
    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node]
    outputs: list[torch.fx.Node]
    ports: list[Port]
    """Of the inputs."""
    form: Skeleton
    dims: dict[tuple[int, int], int]


def find_and_lift(
    program: torch.export.ExportedProgram,
    selectors: Sequence[Selector],
    border: Border,
    calls: Mapping[str, Sequence[Iterable[torch.fx.Node]]],
    *,
    is_builtin: Callable[[str], bool],
) -> Selection:
    """Find the sites of all selectors in a decomposed program and fold weights; the carver is made after this.

    Raises:
        UserError: ``selector_no_match``, ``selector_overlap``, ``selector_not_convex``, ``lift_refused`` or
            ``builtin_name``: the target would put its own operator of that name in the plugin's place.
    """
    for selector in selectors:
        if is_builtin(selector.name):
            msg = f"{selector.placeholder}: the target has an operator {selector.name} of its own and would take that"
            raise UserError(msg, code="builtin_name", hint=f"Choose another name, for example {selector.name}Plugin.")
    matches = find_sites(program, selectors, border, calls)
    return Selection(matches, lift_weights(program, matches))


def carve_selected(
    program: torch.export.ExportedProgram, carver: Carver, selection: Selection, border: Border, can_vary: CanVary
) -> list[str]:
    """Put a placeholder in the place of every site.

    Sites that differ only in extents share one region; others get ``<Name>_1``, ``<Name>_2`` and so on.

    Returns:
        Notes for the user.

    Raises:
        UserError: ``selector_mixed_shapes``: the sites' shapes differ and no single program takes all of them;
            ``selector_dead``: nothing uses what a site computes.
    """
    worker = _Worker(program, carver, border, can_vary, {match.selector.name for match in selection.matches})
    by_selector: dict[str, list[Match]] = {}
    for match in selection.matches:
        by_selector.setdefault(match.selector.placeholder, []).append(match)
    for matches in by_selector.values():
        worker.carve(matches)
    program.graph_module.graph.lint()
    program.graph_module.recompile()
    return [*selection.notes, *worker.notes]


class _Worker:
    def __init__(
        self,
        program: torch.export.ExportedProgram,
        carver: Carver,
        border: Border,
        can_vary: CanVary,
        taken: set[str],
    ) -> None:
        self._program = program
        self._carver = carver
        self._border = border
        self._can_vary = can_vary
        self._taken = taken
        self._lifted = torch_adapter.lifted_tensors(program)
        self.notes: list[str] = []

    def carve(self, matches: Sequence[Match]) -> None:
        """Carve all sites of one selector."""
        order = {node: index for index, node in enumerate(self._program.graph_module.graph.nodes)}
        matches = sorted(matches, key=lambda match: min(order[node] for node in match.nodes))
        sites = [self._site(match, order) for match in matches]
        selector = matches[0].selector
        idle = [glob for glob in selector.where.include if not any(_admits(glob, match) for match in matches)]
        if idle:
            self.notes.append(f"{selector.placeholder}: nothing is in the scope of @where={','.join(idle)}")
        groups = families([site.form for site in sites], [site.dims for site in sites], lambda i: _ranks(sites[i]))
        names = self._names(selector, len(groups))
        for name, group in zip(names, groups, strict=True):
            self._carve_family([sites[index] for index in group], name)
        if len(groups) > 1:
            listed = ", ".join(f"{name} ({len(group)})" for name, group in zip(names, groups, strict=True))
            why = first_difference(sites[groups[0][0]].form, sites[groups[1][0]].form)
            self.notes.append(
                f"{selector.placeholder}: its sites are not alike ({why}), so they are {len(groups)} plugins: {listed}"
            )

    def _names(self, selector: Selector, count: int) -> list[str]:
        names = [selector.name]
        serial = 1
        while len(names) < count:
            name = f"{selector.name}_{serial}"
            if name not in self._taken:
                names.append(name)
            serial += 1
        return names

    def _site(self, match: Match, order: Mapping[torch.fx.Node, int]) -> _Site:
        nodes = sorted(match.nodes, key=order.__getitem__)
        outside, outputs = _borders(nodes)
        if not outputs:
            msg = f"{match.selector.placeholder} at {match.place}: nothing uses its result"
            raise UserError(msg, code="selector_dead", hint="Leave it out with @where=!<glob>.")
        baked = {node: _tensor_digest(self._lifted[node.name][1]) for node in outside if self._is_baked(match, node)}
        inputs = [node for node in outside if node not in baked]
        ports = [self._carver.port(node) for node in (*inputs, *outputs)]
        form = skeleton(nodes, inputs, outputs, ports, baked)
        dims = {
            (index, axis): extent
            for index, port in enumerate(ports[: len(inputs)])
            for axis, extent in enumerate(port.shape)
        }
        return _Site(match, nodes, inputs, outputs, ports[: len(inputs)], form, dims)

    def _carve_family(self, sites: Sequence[_Site], name: str) -> None:
        # Anew: what entered or left a site may have been another, which is a placeholder by now.
        sites = [self._fresh(site) for site in sites]
        first = sites[0]
        explained = unify([site.form for site in sites], [site.dims for site in sites], _ranks(first)) or {}
        body = self._body(first)
        if explained:
            generalise(body, explained, first.form.slots)
        self._check_shapes(sites, body)
        selector = first.match.selector
        head = _head(first.nodes)
        numbers = [str(explained.get(index, value)) for index, value in enumerate(first.form.values)]
        refusal = Refusal(head.name, CandidateReason.SELECTOR, f"selected by --plugin '{selector.text}'")
        region = make_region(
            self._program.graph_module,
            first.nodes,
            first.inputs,
            first.outputs,
            name=name,
            namespace=selector.namespace,
            refusal=refusal,
            head=head,
            signature="; ".join([first.form.text, *numbers]),
            border=self._border,
            body=body,
        )
        region.selector = selector.text
        for site in sites:
            scope = (site.match.scope.module_path, site.match.scope.kind)
            # And again: the sites of one family may follow each other.
            fresh = self._fresh(site)
            self._carver.place(
                region, site.nodes, fresh.inputs, fresh.outputs, _head(site.nodes), scope=scope, names=site.match.names
            )

    def _fresh(self, site: _Site) -> _Site:
        outside, outputs = _borders(site.nodes)
        inputs = [node for node in outside if not self._is_baked(site.match, node)]
        return replace(site, inputs=inputs, outputs=outputs)

    def _is_baked(self, match: Match, node: torch.fx.Node) -> bool:
        return match.selector.lift is Lift.NONE and node.name in self._lifted

    def _body(self, site: _Site) -> torch.fx.GraphModule:
        """Copy the site's nodes; weights that are no inputs become constants of the copy."""
        outside, _ = _borders(site.nodes)
        baked = [node for node in outside if node not in site.inputs]
        body = extract_body(self._program.graph_module, site.nodes, [*site.inputs, *baked], site.outputs)
        places = [node for node in body.graph.nodes if node.op == "placeholder"][len(site.inputs) :]
        for index, (node, place) in enumerate(zip(baked, places, strict=True)):
            body.register_buffer(f"weight{index}", self._lifted[node.name][1].detach().clone())
            with body.graph.inserting_before(place):
                constant = body.graph.get_attr(f"weight{index}")
            constant.meta = {**place.meta, "ytk_baked": True}
            place.replace_all_uses_with(constant)
            body.graph.erase_node(place)
        body.recompile()
        return body

    def _check_shapes(self, sites: Sequence[_Site], body: torch.fx.GraphModule) -> None:
        shapes = [[port.shape for port in site.ports] for site in sites]
        dtypes = [getattr(torch, str(port.dtype)) for port in sites[0].ports]
        if all(shape == shapes[0] for shape in shapes) or self._can_vary(body, shapes, dtypes):
            return
        selector = sites[0].match.selector
        other = next(site for site, shape in zip(sites, shapes, strict=True) if shape != shapes[0])
        msg = (
            f"{selector.placeholder} mixes shapes that one plugin cannot serve: {_activations(sites[0])} at"
            f" {sites[0].match.place} and {_activations(other)} at {other.match.place}"
        )
        hint = f"Split it by scope: one selector with @where={sites[0].match.place}, another with @where={other.match.place}."
        raise UserError(msg, code="selector_mixed_shapes", hint=hint)


def _admits(glob: str, match: Match) -> bool:
    return Where((glob,)).admits(match.scope.path)


def _borders(nodes: Sequence[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Give what enters a set of nodes, in order of first use, and which of them are used outside."""
    inside = set(nodes)
    outside = list(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes if arg not in inside))
    return outside, [node for node in nodes if any(user not in inside for user in node.users)]


def _activations(site: _Site) -> str:
    shapes = [port.shape for port in site.ports if port.role is Role.ACTIVATION] or [port.shape for port in site.ports]
    return " and ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def _ranks(site: _Site) -> list[int]:
    return [len(port.shape) for port in site.ports]


def _head(nodes: Sequence[torch.fx.Node]) -> torch.fx.Node:
    """Give the most telling operator: the first heavy one, else the first that is no plumbing, else the first."""
    calls = [node for node in nodes if node.op == "call_function"]
    heavy = [node for node in calls if is_heavy(node)]
    rest = [node for node in calls if not is_plumbing(node)]
    return (heavy or rest or calls)[0]


def _tensor_digest(tensor: Any) -> str:
    array = np.ascontiguousarray(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return str(digest_bytes(f"{tensor.dtype}{list(tensor.shape)}".encode() + array.tobytes()))
