"""``fx_nodes.json``: every node of the exported program, the module it belongs to, and what it became in the ONNX."""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir
import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.user_code import is_user_file
from ytk_core.dtypes import DType
from ytk_core.formats.prepare_outputs import FxNode, TensorShape

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+')


def snapshot(program: torch.export.ExportedProgram, model_path: Path) -> list[FxNode]:
    """Describe the nodes of a decomposed program before anything is carved."""
    nodes = []
    for node in program.graph_module.graph.nodes:
        scopes = torch_adapter.module_scopes(node)
        path, kind = scopes[-1] if scopes else ("", "")
        file, line = source_place(str(node.meta.get("stack_trace") or ""), model_path)
        nodes.append(
            FxNode(
                name=node.name,
                op=node.op,
                target=str(node.target)
                if not callable(node.target) or hasattr(node.target, "_schema")
                else _function_name(node.target),
                inputs=tuple(arg.name for arg in node.all_input_nodes),
                outputs=tuple(_shapes(node.meta.get("val"))),
                module_path=path,
                module_class=kind,
                source_file=file,
                source_line=line,
            )
        )
    return nodes


def _function_name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', function)}".lstrip(".")


def _shapes(value: Any) -> list[TensorShape]:
    if isinstance(value, (tuple, list)):
        return [shape for item in value for shape in _shapes(item)]
    if not isinstance(value, torch.Tensor):
        return []
    name = str(value.dtype).removeprefix("torch.")
    if name not in set(DType):
        return []
    return [
        TensorShape(
            dtype=DType(name),
            shape=tuple(str(dim) if isinstance(dim, torch.SymInt) else int(dim) for dim in value.shape),
        )
    ]


def finish(
    nodes: Sequence[FxNode], regions: Mapping[str, str], sites: Mapping[str, str], model: ir.Model
) -> list[FxNode]:
    """Add what each node became.

    Args:
        nodes: From :func:`snapshot`.
        regions: ``<namespace>::<Name>`` by the name of each carved node.
        sites: The FX name of the site's operator by the name of each carved node.
        model: The final graph.
    """
    became: dict[str, list[str]] = defaultdict(list)
    for onnx_node in ir.traversal.RecursiveGraphIterator(model.graph):
        origin = torch_adapter.fx_node_name(onnx_node)
        if origin:
            became[origin].append(str(onnx_node.name))
    return [
        msgspec.structs.replace(
            node, region=regions.get(node.name), onnx_nodes=tuple(became.get(sites.get(node.name, node.name), ()))
        )
        for node in nodes
    ]


def source_place(stack_trace: str, model_path: Path) -> tuple[str, int | None]:
    """Give file and line of the innermost frame that is the user's code, of the innermost frame if none is."""
    frames = list(_FRAME.finditer(stack_trace))
    if not frames:
        return "", None
    best = next((frame for frame in reversed(frames) if is_user_file(frame["file"], model_path)), frames[-1])
    return best["file"], int(best["line"])


def source_line(stack_trace: str, model_path: Path) -> str:
    """Give ``file:line: source`` of the line that :func:`source_place` finds, "" if there is none."""
    file, line = source_place(stack_trace, model_path)
    if line is None:
        return ""
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f": {text}" if text else "")
