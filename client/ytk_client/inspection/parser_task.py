"""Ask the ONNX parser of TensorRT for RTX about a graph; runs in a sandboxed child, since it is native code on foreign data.

The parser names the nodes that it has no importer for all at once, but ends at the first that it cannot import. So what it
refuses is cut out and it is asked again, until it refuses nothing more.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from ytk_client.inspection.onnx_cut import cut, name_by_key
from ytk_core.errors import NotAvailableError

GRAPH = "graph.onnx"
PACKAGE = "tensorrt_rtx"
NODE_MARK = "ytk-parser-node "
"""Begins a line of the log that names the node the parser is at: where it ends the process, that one is to blame."""
_MAX_ROUNDS = 64
_MAX_REASON = 300


def ask(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Hold the graph in ``workdir`` against the parser.

    Args:
        task: ``path``: where the model lies, to find its external weights; ``cut``: keys of nodes that are not to be judged.
        workdir: Holds :data:`GRAPH`, with types for all values.

    Returns:
        ``version``; ``refused``: key, reason and place in the parser's source of each refused node; ``unjudged``: keys of
        nodes that were not reached; ``graph_error``: a refusal that is about no node, or null.

    Raises:
        NotAvailableError: The parser is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise not_installed()
    import onnx
    import tensorrt_rtx as trt

    class Log(trt.ILogger):  # type: ignore[misc]  # has no type information
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, _severity: Any, text: str) -> None:
            for mark in ("Static check for parsing node: ", "Parsing node: "):
                if text.startswith(mark):
                    sys.stdout.write(NODE_MARK + text.removeprefix(mark).rpartition(" [")[0] + "\n")
                    sys.stdout.flush()

    model = onnx.load(str(workdir / GRAPH), load_external_data=False)
    owners = name_by_key(model.graph)
    logger = Log()
    builder = trt.Builder(logger)
    gone = set(task["cut"])
    unjudged = cut(model.graph, gone)
    refused: dict[str, dict[str, str]] = {}
    graph_error: str | None = None
    for _ in range(_MAX_ROUNDS):
        network = builder.create_network(0)  # the parser does not keep it alive
        parser = trt.OnnxParser(network, logger)
        if not model.graph.node or parser.supports_model_v2(model.SerializeToString(), task["path"]):
            break
        found: dict[str, dict[str, str]] = {}
        for index in range(parser.num_errors):
            error = parser.get_error(index)
            key = owners.get(error.node_name())
            reason = f"{_word(error.code())}: {_short(str(error.desc()))}"
            if key is None or error.node() < 0:
                graph_error = graph_error or reason
                continue
            place = f"{error.func()}, {error.file()}:{error.line()}"
            found.setdefault(key, {"node": key, "reason": reason, "place": place})
        new = {key: each for key, each in found.items() if key not in gone}
        if not new:
            break
        refused |= new
        unjudged += cut(model.graph, set(new))
        gone |= set(new)
        graph_error = None
    return {
        "version": str(trt.__version__),
        "refused": list(refused.values()),
        "unjudged": unjudged,
        "graph_error": graph_error,
    }


def not_installed() -> NotAvailableError:
    """Give the error for a parser that is not there."""
    return NotAvailableError(
        "the second opinion is that of the ONNX parser of TensorRT for RTX, which is not installed",
        code="no_second_opinion",
        hint="pip install 'yasp-toolkit[second-opinion]'; it needs no GPU. Or leave out --second-opinion.",
    )


def _short(text: str) -> str:
    """Leave out what it says about the missing GPU, again after each error."""
    text = " ".join(text.partition("[checkMacros.cpp")[0].split())
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]} ..."


def _word(code: Any) -> str:
    return str(getattr(code, "name", code)).lower().replace("_", " ")
