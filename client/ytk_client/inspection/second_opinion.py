"""``inspect --second-opinion``: what a real TensorRT parser says about a model, beside our rules.

The parser is that of TensorRT for RTX, which needs no GPU. It is of the TensorRT 10 line: about older targets it says what a newer parser
does. Where it refuses a node that our rules accept, or the other way round, one of the two is to be looked at.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_client.inspection import onnx_external, parser_task
from ytk_client.inspection.findings import Finding, Severity, Table
from ytk_client.inspection.onnx_read import Model, Node
from ytk_client.inspection.onnx_rules import is_custom
from ytk_core.agent.tasks import run_task_locally
from ytk_core.errors import CandidateError, FailureClass
from ytk_core.sandbox import SandboxMode, SandboxPolicy
from ytk_core.targets import TargetProfile

_LIMIT_S = 600.0
_GIB = 1024**3
_POLICY = SandboxPolicy(memory_bytes=64 * _GIB, disk_bytes=_GIB, processes=256)

Ask = Callable[[str, Mapping[str, Any], Path, SandboxPolicy, Callable[[str], None]], dict[str, Any]]


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """What the parser said. ``refused``: reason and place in its source by node; ``ended_at``: the node at which it ended the process."""

    parser: str
    refused: dict[str, tuple[str, str]]
    unjudged: tuple[str, ...] = ()
    graph_error: str | None = None
    ended_at: str | None = None


def ask_parser(model: Model, *, sandbox: SandboxMode = "required", run: Ask | None = None) -> Opinion:
    """Ask the parser about every node that needs no plugin.

    Args:
        model: What :func:`ytk_client.inspection.onnx_read.load` gave.
        sandbox: The parser is native code that reads a file of somebody's; ``required`` refuses where no sandbox works.
        run: Runs the child; by default the agents' own runner.

    Raises:
        NotAvailableError: The parser is not installed.
        BoardError: ``no_sandbox``.
    """
    if run is None and importlib.util.find_spec(parser_task.PACKAGE) is None:
        raise parser_task.not_installed()
    custom = [node.outputs[0] for node in model.nodes if is_custom(node) and node.outputs]
    weights = [onnx_external.external_place(model.path, tensor) for tensor in model.external.values()]
    files = {place[0].resolve() for place in weights if not isinstance(place, str)}
    policy = msgspec.structs.replace(_POLICY, read_only=tuple(sorted(files)))
    last = ""

    def watch(text: str) -> None:
        nonlocal last
        for line in text.splitlines():
            if line.startswith(parser_task.NODE_MARK):
                last = line.removeprefix(parser_task.NODE_MARK)

    with tempfile.TemporaryDirectory(prefix="ytk-opinion-") as folder:
        work = Path(folder)
        (work / parser_task.GRAPH).write_bytes(model.proto.SerializeToString())
        task = {"path": str(model.path.resolve()), "cut": custom}
        try:
            answer = (run or _in_child(sandbox))("ytk_client.inspection.parser_task:ask", task, work, policy, watch)
        except CandidateError as err:  # it ended the process: an assertion, a crash, a limit
            return Opinion(
                parser=parser_task.PACKAGE,
                refused={},
                ended_at=last or "its start",
                graph_error=err.message.partition("\n")[0],
            )
    return Opinion(
        parser=f"{parser_task.PACKAGE} {answer['version']}",
        refused={each["node"]: (each["reason"], each["place"]) for each in answer["refused"]},
        unjudged=tuple(answer["unjudged"]),
        graph_error=answer["graph_error"],
    )


def _in_child(mode: SandboxMode) -> Ask:
    def run(
        ref: str, task: Mapping[str, Any], workdir: Path, policy: SandboxPolicy, log: Callable[[str], None]
    ) -> dict[str, Any]:
        return run_task_locally(ref, task, workdir, policy, _LIMIT_S, mode=mode, log=log, blame=FailureClass.CANDIDATES)

    return run


def opinion_findings(model: Model, profile: TargetProfile, opinion: Opinion) -> list[Finding]:
    """Name the nodes about which the parser and our rules differ, and what the parser did not judge."""
    found = [
        _finding(
            node,
            severity=Severity.WARNING,
            message=f"{opinion.parser} refuses it ({opinion.refused[key][0]}); the rules of {profile.name} accept it",
            fix="Carve the node with `ytk embedded prepare --plugin`, or try it on the target; report the model if the target refuses it.",
            source=opinion.refused[key][1],
        )
        for key, node in _judged(model)
        if key in opinion.refused and profile.check(node.facts).ok
    ]
    rest = len(opinion.unjudged)
    if opinion.ended_at is not None:
        text = f"{opinion.parser} ended at {opinion.ended_at!r} and judged nothing: {opinion.graph_error}"
    elif opinion.graph_error is not None:
        text = f"{opinion.parser} refuses the graph: {opinion.graph_error}"
    else:
        text = f"{opinion.parser} did not reach {rest} nodes, which take values of unknown type" if rest else ""
    if text:
        found.append(
            Finding(
                kind="second-opinion",
                severity=Severity.NOTE if rest and opinion.graph_error is None else Severity.WARNING,
                message=text,
                fix="Simplify the model round that place, or judge it by the rules alone."
                if opinion.ended_at is not None or opinion.graph_error is not None
                else "Export with shapes (value_info), as `ytk embedded prepare` does.",
                rule_id="second-opinion",
            )
        )
    return found


def _finding(node: Node, **fields: Any) -> Finding:
    return Finding(
        kind="second-opinion",
        node=node.name,
        op=node.facts.op_type,
        module_path=node.module_path,
        source_line=node.source_line,
        rule_id="second-opinion",
        **fields,
    )


def _judged(model: Model) -> list[tuple[str, Node]]:
    return [(node.outputs[0], node) for node in model.nodes if node.outputs and not is_custom(node)]


def opinion_rows(model: Model, profile: TargetProfile, opinion: Opinion) -> list[dict[str, object]]:
    """Give each node that the parser or our rules refuse: node, op, what each of them says (None: accepts it)."""
    rows: list[dict[str, object]] = []
    for key, node in _judged(model):
        verdict = profile.check(node.facts)
        said = opinion.refused.get(key)
        if said is None and verdict.ok:
            continue
        rows.append(
            {
                "node": node.name,
                "op": node.facts.op_type,
                "rules": None if verdict.ok else verdict.rule,
                "parser": said[0] if said else None,
                "judged": key not in opinion.unjudged and opinion.ended_at is None,
            }
        )
    return rows


def opinion_table(profile: TargetProfile, opinion: Opinion, rows: Sequence[Mapping[str, object]]) -> Table:
    """Give the rows for people."""

    def parser(row: Mapping[str, object]) -> object:
        return row["parser"] or ("accepts" if row["judged"] else "not reached")

    return Table(
        title="Second opinion",
        columns=("NODE", "OPERATOR", f"RULES OF {profile.name}", opinion.parser),
        rows=tuple((row["node"], row["op"], row["rules"] or "accept", parser(row)) for row in rows),
    )
