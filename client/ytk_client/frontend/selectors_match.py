"""Find what selectors mean in a decomposed program: one set of nodes per site."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ytk_client.frontend import quantized
from ytk_client.frontend.growth import Border, convex_closure, grow, is_random
from ytk_client.frontend.selectors import Kind, Selector
from ytk_client.frontend.selectors_around import grow_around
from ytk_core.errors import UserError

Nodes = set["torch.fx.Node"]
_SHOWN = 5
"""Names listed in an error."""


@dataclass(frozen=True)
class Scope:
    """One module call around a node; ``path`` ends in ``@<n>`` for the second and later calls."""

    path: str
    kind: str

    @property
    def module_path(self) -> str:
        """The qualified name of the module, the same for all its calls."""
        return re.sub(r"@\d+", "", self.path)

    def has_class(self, name: str) -> bool:
        """Tell whether the class is meant by a name, with or without the Python module before it."""
        return self.kind == name or self.kind.endswith(f".{name}")


@dataclass(eq=False)
class Match:
    """One site of a selector. ``names``: of all nodes that it stands for, also of those that folding has removed."""

    selector: Selector
    nodes: Nodes
    scope: Scope
    names: set[str] = field(default_factory=set)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return self.scope.path or "(top)"


def scopes_of(node: torch.fx.Node) -> list[Scope]:
    """Give the module calls around a node, outermost first."""
    found = []
    for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        # torch numbers the calls of a module in the key only: `head`, `head@1`.
        call = re.search(r"@\d+$", str(key))
        found.append(Scope(f"{path}{call.group() if call and '@' not in str(path) else ''}", name))
    return found


def find_sites(
    program: torch.export.ExportedProgram,
    selectors: Sequence[Selector],
    border: Border,
    calls: Mapping[str, Sequence[Iterable[torch.fx.Node]]],
) -> list[Match]:
    """Give the sites of all selectors, in graph order within a selector.

    Args:
        program: Decomposed.
        selectors: What to look for.
        border: What the target lets pass into and out of a plugin.
        calls: The nodes of each intercepted call, by dotted path.

    Raises:
        UserError: ``selector_no_match``, ``selector_overlap``, ``selector_not_convex``, or ``bad_selector``.
    """
    matches = []
    for selector in selectors:
        nodes = [node for node in program.graph_module.graph.nodes if node.op == "call_function"]
        found = _raw(nodes, selector, calls)
        for match in found:
            if selector.around:
                owned = {node for node in match.nodes if _innermost(node).path == match.scope.path}
                match.nodes = grow_around(selector, match.place, match.nodes, owned, join=selector.join)
            # A half of a quantize and dequantize pair is of no use alone, and kernel generation knows no such operators.
            match.nodes, gone = quantized.pairs_in_float(program, match.nodes)
            match.names = {node.name for node in gone}
            match.nodes = _completed(match, border)
        matches += found
    _refuse_overlap(matches)
    for match in matches:
        match.names |= {node.name for node in match.nodes}
    return matches


def _innermost(node: torch.fx.Node) -> Scope:
    scopes = scopes_of(node)
    return scopes[-1] if scopes else Scope("", "")


def _raw(
    nodes: Sequence[torch.fx.Node], selector: Selector, calls: Mapping[str, Sequence[Iterable[torch.fx.Node]]]
) -> list[Match]:
    if selector.kind is Kind.CLASS:
        name = selector.names[0]
        named = [node for node in nodes if node.name == name]
        found = _modules(nodes, selector, lambda scope: scope.has_class(name))
        # A list of one node looks like a class; a class of that name goes first.
        return found or ([Match(selector, set(named), _innermost(named[0]))] if named else _no_class(nodes, selector))
    if selector.kind is Kind.MODULE:
        suffix = selector.names[0]

        def meant(scope: Scope) -> bool:
            return scope.module_path == suffix or scope.module_path.endswith(f".{suffix}")

        return _modules(nodes, selector, meant) or _no_module(nodes, selector)
    if selector.kind is Kind.CALL:
        return _calls(nodes, selector, calls)
    by_name = {node.name: node for node in nodes}
    for name in selector.names:
        if name not in by_name:
            raise _unmatched(selector, f"{name!r} is no operator of the program", _near(name, by_name))
    chosen = [by_name[name] for name in selector.names]
    members = _span(selector, *chosen) if selector.kind is Kind.SPAN else set(chosen)
    return [Match(selector, members, _common_scope(members))]


def _modules(nodes: Sequence[torch.fx.Node], selector: Selector, meant: object) -> list[Match]:
    """Group nodes by the outermost module call that is meant and in scope: a block inside a block goes with the outer."""
    assert callable(meant)
    found: dict[str, Match] = {}
    for node in nodes:
        for scope in scopes_of(node):
            if meant(scope) and selector.where.admits(scope.path):
                found.setdefault(scope.path, Match(selector, set(), scope)).nodes.add(node)
                break
    return list(found.values())


def _calls(
    nodes: Sequence[torch.fx.Node], selector: Selector, calls: Mapping[str, Sequence[Iterable[torch.fx.Node]]]
) -> list[Match]:
    name = selector.names[0]
    if name in calls:
        groups = [set(group) for group in calls[name]]
    else:
        groups = [{node} for node in nodes if _is_call_of(node, operator_words(name))]
    found = [Match(selector, group, _common_scope(group)) for group in groups if group]
    admitted = [match for match in found if selector.where.admits(match.scope.path)]
    if admitted:
        return admitted
    if found:
        raise _unmatched(selector, f"@where={selector.where} excludes every call", _listing(m.place for m in found))
    known = sorted({".".join(operator_path(node)) for node in nodes})
    raise _unmatched(selector, f"nothing in the model calls {name}", _near(".".join(operator_words(name)), known))


def operator_path(node: torch.fx.Node) -> tuple[str, ...]:
    """Give ``("aten", "softmax")`` of an overload, the function's module and name otherwise."""
    schema = getattr(node.target, "_schema", None)
    text = str(schema.name).replace("::", ".") if schema is not None else str(getattr(node.target, "__name__", ""))
    return tuple(text.split("."))


def _is_call_of(node: torch.fx.Node, words: tuple[str, ...]) -> bool:
    """Compare an operator with ``("aten", "softmax")`` or, with its overload, ``("aten", "softmax", "int")``."""
    path = operator_path(node)
    return path == words or (*path, getattr(node.target, "_overloadname", "")) == words


def operator_words(path: str) -> tuple[str, ...]:
    """Give the operator that a dotted path names: ``torch.ops.aten.softmax`` and ``aten.softmax`` are one."""
    return tuple(path.removeprefix("torch.ops.").split("."))


def _span(selector: Selector, first: torch.fx.Node, last: torch.fx.Node) -> Nodes:
    between = convex_closure({first, last})
    reach: Nodes = {first}
    for node in first.graph.nodes:
        if node in between and any(arg in reach for arg in node.all_input_nodes):
            reach.add(node)
    if last in reach:
        return {node for node in between if node in reach}
    backwards = convex_closure({last, first})
    swapped = first.name if any(arg in backwards for arg in first.all_input_nodes) else ""
    hint = (
        f"{first.name} depends on {last.name}: write {last.name}...{first.name}."
        if swapped
        else "Name nodes of one path."
    )
    msg = f"{selector.placeholder}: no data flows from {first.name} to {last.name}"
    raise UserError(msg, code="selector_no_match", hint=hint)


def _common_scope(nodes: Iterable[torch.fx.Node]) -> Scope:
    """Give the innermost module call that holds all nodes."""
    lists = [scopes_of(node) for node in nodes]
    common = [same[0] for same in zip(*lists, strict=False) if len(set(same)) == 1]
    return common[-1] if common else Scope("", "")


def _completed(match: Match, border: Border) -> Nodes:
    """Add what cannot stay outside (constants made for the region alone, values that no plugin takes); check convexity."""
    region = set(match.nodes)
    for node in match.nodes:
        touching = [node, *node.all_input_nodes]
        if any(border.objection(each.meta.get("val")) for each in touching):
            region |= {each for each in grow(node, border) if each.op != "placeholder"}
    while True:
        sources = {arg for node in region for arg in node.all_input_nodes} - region
        own = {arg for arg in sources if _is_source(arg) and all(user in region for user in arg.users)}
        if not own:
            break
        region |= own
    between = convex_closure(region) - region
    if between:
        names = _listing(node.name for node in between)
        msg = f"{match.selector.placeholder} at {match.place} is not convex: its data leaves the region and comes back through {names}"
        hint = "Add these nodes to the region, or choose a smaller one."
        raise UserError(msg, code="selector_not_convex", hint=hint)
    return region


def _is_source(node: torch.fx.Node) -> bool:
    constant = node.op == "call_function" and not node.all_input_nodes and not is_random(node)
    return constant or node.op == "get_attr"


def _refuse_overlap(matches: Sequence[Match]) -> None:
    owner: dict[torch.fx.Node, Match] = {}
    for match in matches:
        for node in match.nodes:
            other = owner.setdefault(node, match)
            if other is not match:
                msg = (
                    f"{other.selector.placeholder} at {other.place} and {match.selector.placeholder} at {match.place}"
                    f" overlap: both want {node.name}"
                )
                raise UserError(msg, code="selector_overlap", hint="Narrow one of them with @where=!<glob>.")


# ---- nothing found -----------------------------------------------------------------------------------------------


def _no_class(nodes: Sequence[torch.fx.Node], selector: Selector) -> list[Match]:
    name = selector.names[0]
    scopes = {scope for node in nodes for scope in scopes_of(node)}
    paths = sorted({scope.path for scope in scopes if scope.has_class(name)})
    if paths:
        near = difflib.get_close_matches((selector.where.include or ("",))[0], paths, 1, 0.0)
        nearest = f"nearest is {near[0]!r}; " if near else ""
        raise _unmatched(selector, f"@where={selector.where} excludes every {name}", f"{nearest}{_listing(paths)}")
    classes = {scope.kind.rpartition(".")[2] for scope in scopes}
    raise _unmatched(selector, f"no operator belongs to a module of class {name!r}", _near(name, classes))


def _no_module(nodes: Sequence[torch.fx.Node], selector: Selector) -> list[Match]:
    suffix = selector.names[0]
    paths = {scope.module_path for node in nodes for scope in scopes_of(node)} - {""}
    suffixes = {".".join(path.split(".")[-len(suffix.split(".")) :]) for path in paths}
    if suffix in suffixes:
        raise _unmatched(selector, f"@where={selector.where} excludes every module {suffix!r}", "")
    raise _unmatched(selector, f"no operator belongs to a module named {suffix!r}", _near(suffix, suffixes | paths))


def _unmatched(selector: Selector, problem: str, nearest: str) -> UserError:
    msg = f"{selector.placeholder} matches nothing: {problem}"
    hint = nearest or "Names stand in fx_nodes.json of an earlier prepare."
    return UserError(msg, code="selector_no_match", hint=hint)


def _near(word: str, known: Iterable[str]) -> str:
    options = sorted(set(known) - {""})
    lower = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), list(lower), 3, 0.4)
    if near:
        return f"Nearest: {', '.join(lower[each] for each in near)}."
    return f"There are {_listing(options)}." if options else ""


def _listing(names: Iterable[str]) -> str:
    every = sorted(set(names))
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
