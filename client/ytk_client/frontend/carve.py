"""Take refused nodes out of a decomposed program and put one custom operator in the place of each region.

The removed nodes live on as the operator's reference implementation, so the carved program still computes what the
model computes, and the region can be exported on its own.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.catalogue.routing import Shipped, ports_of, shipped_plugin
from ytk_client.frontend.growth import ANY_BORDER, DTYPES, Border, convex_closure, grow, is_random, seed_of
from ytk_client.frontend.inner_graphs import graph_of, graph_text
from ytk_client.frontend.refusals import Refusal
from ytk_core.dtypes import DType
from ytk_core.errors import ToolkitError
from ytk_core.formats.plugin_meta import Role

_serial = itertools.count()

CanVary = Callable[[torch.fx.GraphModule, Sequence[Sequence[tuple[int, ...]]], Sequence[torch.dtype]], bool]


@dataclass(frozen=True)
class Port:
    """One tensor that enters or leaves a region; ``shape`` holds -1 where the extent depends on the data."""

    value: str
    dtype: DType
    shape: tuple[int, ...]
    role: Role = Role.ACTIVATION
    qualified_name: str = ""
    """Of a parameter, buffer or constant: its name in the model's state."""
    ranges: tuple[tuple[int, int, int, int], ...] = ()
    """Of each axis that ``--dynamic`` made dynamic: (axis, smallest, usual, largest extent)."""


@dataclass(frozen=True)
class Site:
    """One place where a region occurs; ``node`` is the custom operator's FX node there."""

    node: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    module_path: str
    module_class: str
    stack_trace: str


@dataclass
class CarvedRegion:
    """One placeholder operator and everything that is known about what it replaces."""

    name: str
    namespace: str
    op: Any
    body: torch.fx.GraphModule
    refusal: Refusal
    aten_op: str
    aten_ops: tuple[str, ...]
    signature: str
    """Operators, attributes, ranks, dtypes and roles: two sites with the same signature share the region."""
    cannot_be_plugin: str | None
    library: torch.library.Library
    """Keeps the operator registered as long as the region lives."""
    version: str = "1"
    selector: str | None = None
    """The text of the ``--plugin`` that asked for it."""
    shipped: Shipped | None = None
    """The plugin of the catalogue that stands for it: several regions, with other attributes, may share one."""
    sites: list[Site] = field(default_factory=list)

    @property
    def placeholder(self) -> str:
        """``<namespace>::<Name>`` as printed in the plugin table."""
        return f"{self.namespace}::{self.name}"


class Carver:
    """Carves one decomposed program, in as many rounds as there are new refusals.

    Args:
        program: Changed in place.
        namespace: ONNX domain of the placeholders.
        is_builtin: Tells whether the target resolves an operator name itself: no derived name may be one of these.
        border: What the target lets pass into and out of a plugin.
        can_vary: Tells whether one program of a region serves the given shapes (per site, per input); where it does
            not, sites of other shapes get a region of their own.
        extents: By symbol of a dynamic extent: the smallest, the usual and the largest.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        *,
        namespace: str,
        is_builtin: Callable[[str], bool],
        border: Border = ANY_BORDER,
        can_vary: CanVary = lambda _body, _shapes, _dtypes: False,
        extents: Mapping[Any, tuple[int, int, int]] | None = None,
    ) -> None:
        self._extents = extents or {}
        self._border = border
        self._program = program
        self._can_vary = can_vary
        self.carved: dict[str, tuple[str, str]] = {}
        """By the name of each removed node: the placeholder it became part of, and that site's FX node."""
        self._namespace = namespace
        self._is_builtin = is_builtin
        self._regions: dict[str, CarvedRegion] = {}
        torch_adapter.make_lifted_tensors_real(program)
        self._lifted = torch_adapter.lifted_tensors(program)

    @property
    def regions(self) -> list[CarvedRegion]:
        """The regions carved so far, in the order of their first site."""
        return list(self._regions.values())

    def carve(self, refusals: Sequence[Refusal]) -> None:
        """Replace every refused node, with what must go with it, by a custom operator.

        Raises:
            UserError: ``not_carvable``: a region would have to cross the model's own inputs or outputs with a type
                that no engine carries (complex numbers).
        """
        graph = self._program.graph_module.graph
        nodes = {node.name: node for node in graph.nodes}
        groups: list[tuple[set[torch.fx.Node], Refusal]] = []
        for refusal in refusals:
            grown = grow(nodes[refusal.node], self._border)
            # Two refused nodes may need the same neighbour (both ends of a complex value): then they are one region.
            overlapping = [group for group in groups if group[0] & grown]
            first = overlapping[0][1] if overlapping else refusal
            merged = convex_closure(grown.union(*(group[0] for group in overlapping)))
            groups = [group for group in groups if group not in overlapping] + [(merged, first)]
        order = {node: index for index, node in enumerate(graph.nodes)}
        for region, refusal in sorted(groups, key=lambda group: min(order[node] for node in group[0])):
            members = sorted(region, key=order.__getitem__)
            if not self._route(members, nodes[refusal.node], refusal):
                self._replace(members, nodes[refusal.node], refusal)
        # The translator visits every submodule, also the branches of a torch.cond that is no longer called.
        self._program.graph_module.delete_all_unused_submodules()
        graph.lint()
        self._program.graph_module.recompile()

    def _replace(self, nodes: list[torch.fx.Node], head: torch.fx.Node, refusal: Refusal) -> None:
        graph = self._program.graph_module.graph
        inside = set(nodes)
        inputs = list(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes if arg not in inside))
        outputs = [node for node in nodes if any(user not in inside for user in node.users)]
        if not outputs:  # dead code that was kept for its side effects: nothing for an engine to do
            for node in reversed(nodes):
                graph.erase_node(node)
            return
        region = self._region_for(nodes, inputs, outputs, head, refusal)
        self._insert(region, nodes, inputs, outputs, head)

    def _route(self, nodes: list[torch.fx.Node], head: torch.fx.Node, refusal: Refusal) -> bool:
        """Put a shipped plugin in the place of a refused operator, if there is one for it."""
        own = {head, *(user for user in head.users if torch_adapter.is_getitem(user))}
        found = shipped_plugin(head) if own.issuperset(nodes) else None
        if found is None:
            return False
        inputs, outputs = ports_of(head, found.entry)
        members = [head] if outputs == [head] else [head, *outputs]
        signature = f"shipped {head.target}{found.attributes}"
        region = self._regions.get(signature)
        if region is None:
            region = make_region(
                self._program.graph_module,
                members,
                inputs,
                outputs,
                name=self._shipped_name(found),
                namespace=found.namespace,
                refusal=refusal,
                head=head,
                signature=signature,
                border=self._border,
            )
            region.shipped, region.cannot_be_plugin = found, None
            self._regions[signature] = region
        self._insert(region, members, inputs, outputs, head)
        return True

    def _shipped_name(self, found: Shipped) -> str:
        """Give the plugin's name: the entry's, with a number for each further set of output extents."""
        names = {region.shipped.plugin: region.name for region in self._regions.values() if region.shipped is not None}
        if found.plugin in names:
            return names[found.plugin]
        return next(name for name in _numbered(found.entry.name) if name not in names.values())

    def place(
        self,
        region: CarvedRegion,
        nodes: Sequence[torch.fx.Node],
        inputs: Sequence[torch.fx.Node],
        outputs: Sequence[torch.fx.Node],
        head: torch.fx.Node,
        *,
        scope: tuple[str, str] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        """Put a region that the caller made in the place of nodes, as one more site of it.

        Args:
            region: What the nodes compute; its operator takes ``inputs``.
            nodes: In graph order.
            inputs: What enters.
            outputs: What leaves.
            head: The node whose module and source line stand for the site.
            scope: Module path and class of the site, if not those of ``head``.
            names: Of all nodes that the site stands for, also those that are no longer in the graph.
        """
        self._regions.setdefault(f"{region.placeholder}: {region.signature}", region)
        self._insert(region, list(nodes), list(inputs), list(outputs), head, scope)
        self.carved |= dict.fromkeys(names, (region.placeholder, region.sites[-1].node))

    def _insert(
        self,
        region: CarvedRegion,
        nodes: list[torch.fx.Node],
        inputs: list[torch.fx.Node],
        outputs: list[torch.fx.Node],
        head: torch.fx.Node,
        scope: tuple[str, str] | None = None,
    ) -> None:
        graph, inside = self._program.graph_module.graph, set(nodes)
        with graph.inserting_after(nodes[-1]):
            call = graph.create_node(
                "call_function",
                region.op,
                tuple(inputs),
                {},
                name=f"{region.namespace or 'plugin'}_{region.name}".replace(".", "_"),
            )
        call.meta = {
            key: head.meta[key] for key in ("nn_module_stack", "stack_trace", "source_fn_stack") if key in head.meta
        }
        results = self._results(call, outputs)
        for old, new in zip(outputs, results, strict=True):
            old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
            torch_adapter.replace_in_signature(self._program, old.name, new.name)
        for node in reversed(nodes):
            self.carved[node.name] = (region.placeholder, call.name)
            graph.erase_node(node)
        _restore_order(graph)
        scopes = torch_adapter.module_scopes(head)
        path, kind = scope or (scopes[-1] if scopes else ("", ""))
        region.sites.append(
            Site(
                node=call.name,
                inputs=tuple(self.port(node) for node in inputs),
                outputs=tuple(self.port(node) for node in results),
                module_path=path,
                module_class=kind,
                stack_trace=str(head.meta.get("stack_trace") or ""),
            )
        )

    @staticmethod
    def _results(call: torch.fx.Node, outputs: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """Give the nodes that stand for the region's outputs: the call itself, or one getitem each."""
        if len(outputs) == 1:
            call.meta["val"] = outputs[0].meta["val"]
            return [call]
        call.meta["val"] = tuple(node.meta["val"] for node in outputs)
        results: list[torch.fx.Node] = []
        with call.graph.inserting_after(call):
            for index in reversed(range(len(outputs))):
                item = call.graph.call_function(operator.getitem, (call, index))
                item.meta = dict(outputs[index].meta)
                results.insert(0, item)
        return results

    def port(self, node: torch.fx.Node) -> Port:
        """Describe the value of a node where it enters or leaves a region."""
        value = node.meta["val"]
        ranges = tuple(
            (axis, *torch_adapter.extent_range(dim, self._extents))
            for axis, dim in enumerate(value.shape)
            if isinstance(dim, torch.SymInt) and not torch_adapter.is_unbacked(dim)
        )
        traced = {axis: int(value.shape[axis].node.hint) for axis, *_ in ranges}
        shape = tuple(
            traced.get(axis, -1) if isinstance(dim, torch.SymInt) else int(dim) for axis, dim in enumerate(value.shape)
        )
        origin = torch_adapter.real_form_of(node) or node
        role, _, qualified = self._lifted.get(origin.name, (Role.ACTIVATION, None, ""))
        return Port(node.name, DTYPES[value.dtype], shape, Role(role), qualified, ranges)

    def _region_for(
        self,
        nodes: list[torch.fx.Node],
        inputs: list[torch.fx.Node],
        outputs: list[torch.fx.Node],
        head: torch.fx.Node,
        refusal: Refusal,
    ) -> CarvedRegion:
        ports = [self.port(node) for node in inputs]
        signature = self._shared_signature(self._signature(nodes, inputs, outputs), ports)
        if signature in self._regions:
            return self._regions[signature]
        region = make_region(
            self._program.graph_module,
            nodes,
            inputs,
            outputs,
            name=self._free_name(derived_name(head)),
            namespace=self._namespace,
            refusal=refusal,
            head=head,
            signature=signature,
            border=self._border,
        )
        self._regions[signature] = region
        return region

    def _signature(self, nodes: list[torch.fx.Node], inputs: list[torch.fx.Node], outputs: list[torch.fx.Node]) -> str:
        refs = {node: f"in{index}" for index, node in enumerate(inputs)}
        refs.update({node: f"n{index}" for index, node in enumerate(nodes)})

        def text(node: torch.fx.Node) -> str:
            inner = graph_of(node, self._program.graph_module)
            if inner is not None:
                return graph_text(inner)
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: _Ref(refs[arg]))
            return f"{node.target}{args}{dict(kwargs)}"

        ports = [self.port(node) for node in (*inputs, *outputs)]
        heads = [f"{port.dtype}/{len(port.shape)}/{port.role}" for port in ports]
        return "; ".join([*heads, *(text(node) for node in nodes), *(refs[node] for node in outputs)])

    def _shared_signature(self, signature: str, ports: list[Port]) -> str:
        """Give the signature under which a site is filed: its own plus its shapes where no program serves all shapes."""
        existing = self._regions.get(signature)
        if existing is None:
            return signature
        shapes = [[port.shape for port in site.inputs] for site in existing.sites]
        mine = [port.shape for port in ports]
        dtypes = [getattr(torch, str(port.dtype)) for port in ports]
        if mine in shapes or self._can_vary(existing.body, [*shapes, mine], dtypes):
            return signature
        return f"{signature}; shapes {mine}"

    def _free_name(self, base: str) -> str:
        taken = {region.name for region in self._regions.values()}
        # The target's importer for its own operator would win over our plugin without a word.
        base = f"{base}Region" if self._is_builtin(base) else base
        return next(name for name in _numbered(base) if name not in taken and not self._is_builtin(name))


def make_region(
    root: torch.fx.GraphModule,
    nodes: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
    *,
    name: str,
    namespace: str,
    refusal: Refusal,
    head: torch.fx.Node,
    signature: str,
    border: Border,
    body: torch.fx.GraphModule | None = None,
) -> CarvedRegion:
    """Give the region of a set of nodes, without a site yet.

    Args:
        root: Holds the nodes.
        nodes: In graph order.
        inputs: What enters.
        outputs: What leaves.
        name: Of the plugin.
        namespace: Of the plugin.
        refusal: Why it is carved.
        head: Its most telling operator.
        signature: See :class:`CarvedRegion`.
        border: What the target lets pass.
        body: What computes it; the nodes as they are if not given.
    """
    body = extract_body(root, nodes, inputs, outputs) if body is None else body
    operators = [node for node in _with_inner(nodes, root) if node.target is not operator.getitem]
    op, library = _define(name, body, len(inputs), len(outputs))
    return CarvedRegion(
        name=name,
        namespace=namespace,
        op=op,
        body=body,
        refusal=refusal,
        aten_op=_op_name(head),
        aten_ops=tuple(_op_name(node) for node in operators),
        signature=signature,
        cannot_be_plugin=_why_no_plugin(operators, inputs, outputs, border),
        library=library,
    )


class _Ref(str):
    """A name that prints without quotes inside the repr of an argument list."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _with_inner(nodes: Iterable[torch.fx.Node], root: torch.nn.Module) -> Iterable[torch.fx.Node]:
    """Give the call_function nodes of a region, those in the branches of its higher-order operators included."""
    for node in nodes:
        if node.op == "call_function":
            yield node
        elif node.op == "get_attr":
            inner = graph_of(node, root)
            if inner is not None:
                yield from _with_inner(inner.graph.nodes, inner)


def _numbered(base: str) -> Iterable[str]:
    yield base
    yield from (f"{base}_{index}" for index in itertools.count(1))


def derived_name(node: torch.fx.Node) -> str:
    """Derive a plugin name from the refused operator: ``aten.col2im.default`` gives ``Col2im``."""
    words = re.split(r"[^A-Za-z0-9]+", _op_name(node).split("::")[-1])
    name = "".join(word[:1].upper() + word[1:] for word in words if word)
    return name if name[:1].isalpha() else f"Op{name}"


def _op_name(node: torch.fx.Node) -> str:
    """Give ``aten::col2im`` for an overload, the function's name for anything else."""
    target = torch_adapter.original_operator(node)
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001 - the class has no public name
        return str(target.name()).split(".")[0]
    return str(getattr(target, "__name__", target))


def extract_body(
    root: torch.fx.GraphModule,
    nodes: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
) -> torch.fx.GraphModule:
    """Copy a region's nodes into a graph module of its own: inputs ``in0..``, one tensor or a tuple of tensors out."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for index, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"in{index}")
        copies[node].meta["val"] = node.meta["val"]
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = tuple(copies[node] for node in outputs)
    graph.output(results[0] if len(results) == 1 else results)
    return torch.fx.GraphModule(root, graph)


def _define(name: str, body: torch.fx.GraphModule, inputs: int, outputs: int) -> tuple[Any, torch.library.Library]:
    """Register the region as an operator of torch, with the body as implementation and as shape function."""
    unique = f"{name}_{next(_serial)}"
    returns = "Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")"
    library = torch.library.Library(torch_adapter.REGION_NAMESPACE, "FRAGMENT")
    library.define(f"{unique}({', '.join(f'Tensor in{index}' for index in range(inputs))}) -> {returns}")

    def run(*tensors: torch.Tensor) -> Any:
        result = body(*tensors)
        # An operator must not return one of its inputs, and a body made of views would.
        return result.clone() if outputs == 1 else tuple(tensor.clone() for tensor in result)

    library.impl(unique, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{torch_adapter.REGION_NAMESPACE}::{unique}", run, lib=library)
    return getattr(getattr(torch.ops, torch_adapter.REGION_NAMESPACE), unique).default, library


def _why_no_plugin(
    nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node], border: Border
) -> str | None:
    """Give the reason why no kernel can be generated for a region, or None."""
    if not inputs:
        return "it has no tensor input, and a plugin needs one"
    for node in outputs:
        if any(torch_adapter.is_unbacked(dim) for dim in node.meta["val"].shape):
            return f"data-dependent output: the shape of {_op_name(seed_of(node))}'s result is known only after it ran"
    for kind, border_nodes in (("input", inputs), ("output", outputs)):
        for index, node in enumerate(border_nodes):
            objection = border.objection(node.meta["val"])
            if objection:
                return f"{kind} {index} is a tensor {objection}: the target cannot pass it to a plugin"
    for node in nodes:
        if isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - the class has no public name
            if is_random(node):
                return f"{_op_name(node)} draws random numbers, so no generated kernel can be checked against torch"
            if node.target.namespace not in {"aten", "prims"}:
                return f"{_op_name(node)} is an operator of the model's own: kernel generation cannot load it"
    return None


def _restore_order(graph: torch.fx.Graph) -> None:
    """Sort the graph so that every node follows its inputs; nodes that need not move stay in order.

    A convex region may still interleave with others: a user of its first output can stand before its last input.
    """
    nodes = list(graph.nodes)
    index = {node: position for position, node in enumerate(nodes)}
    if all(index[arg] < index[node] for node in nodes for arg in node.all_input_nodes):
        return
    done: dict[torch.fx.Node, None] = {}

    def visit(root: torch.fx.Node) -> None:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [arg for arg in node.all_input_nodes if arg not in done]
            if missing:
                stack.extend(missing)
                continue
            done.setdefault(stack.pop(), None)

    for node in nodes:
        visit(node)
    if len(done) != len(nodes):
        msg = "carving left a graph that cannot be ordered"
        raise ToolkitError(msg, code="carve_order")
    ordered = list(done)
    for before, after in itertools.pairwise(ordered):
        before.append(after)
