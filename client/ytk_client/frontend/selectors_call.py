"""``call:<dotted.path>``: mark what a Python function does while the model is traced."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ytk_client.frontend.selectors import Kind, Selector
from ytk_core.errors import UserError

_LIBRARY = torch.library.Library("ytk_mark", "DEF")
_LIBRARY.define("enter(Tensor value, str key) -> Tensor")
_LIBRARY.define("leave(Tensor value, str key) -> Tensor")


def _copy(value: torch.Tensor, _key: str) -> torch.Tensor:
    return value.clone()


for _name in ("enter", "leave"):
    _LIBRARY.impl(_name, _copy, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ytk_mark::{_name}", _copy, lib=_LIBRARY)


def python_paths(selectors: Sequence[Selector]) -> list[str]:
    """Give the dotted paths to intercept; operators (``aten.softmax``) are found in the program without."""
    paths = [each.names[0] for each in selectors if each.kind is Kind.CALL]
    return [path for path in paths if not _is_operator(path)]


def _is_operator(path: str) -> bool:
    """Tell an operator of any namespace, the model's own included, from a Python function."""
    if path.startswith("torch.ops."):
        return True
    words = path.split(".")
    if len(words) not in {2, 3}:
        return False
    return words[0] in {"aten", "prims"} or getattr(getattr(torch.ops, words[0]), words[1], None) is not None


@contextlib.contextmanager
def intercepted(paths: Sequence[str]) -> Iterator[None]:
    """Mark every call of these functions with operators of our own, which :func:`take_marks` finds and removes.

    Raises:
        UserError: ``selector_no_match``: there is no such function.
    """
    with contextlib.ExitStack() as stack:
        for path in paths:
            owner, name, function = _resolve(path)
            wrapper = _marking(function, path)
            _replace(stack, owner, name, wrapper)
            # `from helpers import f` gave the model a name of its own for it.
            for module in list(sys.modules.values()):
                for other, value in list(getattr(module, "__dict__", {}).items()):
                    if value is function and (module is not owner or other != name):
                        _replace(stack, module, other, wrapper)
        yield


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    old = owner.__dict__.get(name, getattr(owner, name))
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, old)


def _resolve(path: str) -> tuple[Any, str, Callable[..., Any]]:
    words = path.split(".")
    for count in range(len(words) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(words[:count]))
        except ImportError:
            continue
        for word in words[count:-1]:
            owner = getattr(owner, word, None)
        function = getattr(owner, words[-1], None)
        if callable(function) and not isinstance(function, type):
            return owner, words[-1], function
        break
    msg = f"call:{path} matches nothing: there is no function {path}"
    hint = "A path as in Python (torch.nn.functional.pad, model.helper), or an operator (aten.softmax, quantized_decomposed.quantize_per_tensor)."
    raise UserError(msg, code="selector_no_match", hint=hint)


def _marking(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    serial = itertools.count()
    running = False

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if running:  # torch's own dispatch looks the function up again by its name
            return function(*args, **kwargs)
        key = f"{path}#{next(serial)}"
        running = True
        try:
            args, kwargs = _each(torch.ops.ytk_mark.enter, key, (args, kwargs))
            return _each(torch.ops.ytk_mark.leave, key, function(*args, **kwargs))
        finally:
            running = False

    return wrapper


def _each(mark: Any, key: str, tree: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda value: mark(value, key), tree)  # noqa: SLF001 - torch's pytree has no public name


def take_marks(program: torch.export.ExportedProgram) -> dict[str, list[set[torch.fx.Node]]]:
    """Remove the marks from a decomposed program and give, by dotted path, the nodes of each call."""
    graph = program.graph_module.graph
    enters, leaves = (_by_key(graph, mark) for mark in (torch.ops.ytk_mark.enter, torch.ops.ytk_mark.leave))
    found: dict[str, list[set[torch.fx.Node]]] = {}
    for key in dict.fromkeys((*enters, *leaves)):
        stop = set(enters.get(key, ()))
        # A tensor that the function did not get as an argument (a closure) was made outside of it.
        after = {node for node in graph.nodes if node in stop}
        for node in graph.nodes:
            if stop and any(arg in after for arg in node.all_input_nodes):
                after.add(node)
        inside: set[torch.fx.Node] = set()
        waiting = [arg for leave in leaves.get(key, ()) for arg in leave.all_input_nodes]
        while waiting:
            node = waiting.pop()
            known = node in inside or node in stop or (stop and node not in after)
            if not known and node.op == "call_function":
                inside.add(node)
                waiting += node.all_input_nodes
        found.setdefault(key.partition("#")[0], []).append(inside)
    for node in list(graph.nodes):
        if getattr(node.target, "namespace", "") == "ytk_mark":
            value = node.args[0]
            node.replace_all_uses_with(value)
            program.graph_signature.replace_all_uses(node.name, value.name)
            graph.erase_node(node)
    program.graph_module.recompile()
    marks = {node for groups in found.values() for group in groups for node in group}
    gone = {node for node in marks if getattr(node.target, "namespace", "") == "ytk_mark"}
    return {path: [group - gone for group in groups if group - gone] for path, groups in found.items()}


def _by_key(graph: torch.fx.Graph, mark: Any) -> dict[str, list[torch.fx.Node]]:
    found: dict[str, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is mark.default:
            found.setdefault(str(node.args[1]), []).append(node)
    return found
