"""Gaia agents of the end-to-end tests: the real handlers in the real runtime, with tasks that need neither torch nor a compiler.

``python -m e2e.searchers --mode generator|evaluator ...``. The region is a JSON file that says how many candidates there are, at
which gate each evaluation waits (see :mod:`e2e.gates`), and where it writes down what it measured.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from ytk_core.agent.handler import JobHandler
from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_gaia import search
from ytk_gaia.evaluator.verdicts import write_evaluation
from ytk_gaia.handlers import EvaluateHandler, GenerateHandler

from e2e.gates import ARCH


def generate(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Write as many candidates as the region says."""
    from fakes.search_results import generated

    wanted = json.loads((workdir / task["region"]).read_bytes())
    out = workdir / "out" / "candidates"
    out.mkdir(parents=True)
    ids = [f"c{k:02d}" for k in range(wanted["count"])]
    for name in ids:
        (out / f"{name}.py").write_text(name)
    (workdir / "out" / "task.json").write_text(json.dumps(wanted))
    (workdir / "out" / "task.npz").write_bytes(b"")
    return {**generated(*ids), "region": {"name": "Region", "namespace": "yasp"}}


def evaluate(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Wait at the gate, write down what was asked, and call the candidates with small numbers fast."""
    import msgspec

    from ytk_gaia.evaluator.verdicts import PairedRatio

    from fakes.search_results import evaluation, passed

    wanted = json.loads((workdir / "in" / "task.json").read_bytes())
    ids = sorted(path.stem for path in (workdir / "in" / "candidates").glob("*.py"))
    with Path(f"{wanted['gate']}.started").open("w") as started:
        started.write(f"{os.getpid()}\n")
    with Path(f"{wanted['gate']}.go").open() as go:
        go.readline()
    results = []
    for name in ids:
        time = 1 + int(name[1:]) / 10
        pair = PairedRatio(to=task["baseline"], median=time, low=time, high=time, pairs=4, confidence=0.95)
        results.append(msgspec.structs.replace(passed(name, time), baseline=pair, ratio=pair))
    (workdir / "out").mkdir()
    write_evaluation(workdir / "out" / "evaluation.json", evaluation(*results))
    with Path(wanted["record"]).open("a") as record:
        record.write(" ".join(ids) + "\n")
    return {"verdicts": dict.fromkeys(ids, "PASSED")}


def handlers(settings: AgentSettings) -> list[JobHandler]:
    """Give what this agent does."""
    search.GENERATE_TASK = "e2e.searchers:generate"
    search.EVALUATE_TASK = "e2e.searchers:evaluate"
    return [GenerateHandler()] if settings.extra["mode"] == "generator" else [EvaluateHandler(settings.worker_id)]


def facts(settings: AgentSettings) -> WorkerFacts:
    """Give what this agent is."""
    evaluator = settings.extra["mode"] == "evaluator"
    return WorkerFacts(arch_specs=(ARCH,), device_uid=settings.worker_id if evaluator else "", device_name="a machine")


def main() -> None:
    """Run the daemon."""
    mode = click.Option(["--mode"], type=click.Choice(["generator", "evaluator"]), required=True, help="What it does.")
    agent_main("gaia", handlers, facts, options=[mode])()


if __name__ == "__main__":
    main()
