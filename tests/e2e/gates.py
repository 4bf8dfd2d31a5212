"""Agents of the end-to-end tests: the real runtime as a real daemon, with jobs that wait at a gate the test opens.

``python -m e2e.gates --controller ... --token-file ... --state-dir ...`` (with ``tests`` on ``PYTHONPATH``).
A gate is a pair of FIFOs: the task writes its process id into ``<gate>.started`` and reads one line from ``<gate>.go``. So
a test waits for a job without sleeping, and lets it go on when it wants.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ytk_core.agent.handler import JobContext, JobHandler
from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_core.jobs import JobKind, JobResult, JobSpec

ARCH = "amd64-cpuv2-linux-glibc236-ov20264"
CHILD_ENV = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def wait_at_gate(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Say that the task runs, wait for the word, write the output."""
    gate = Path(task["gate"])
    print(f"at the gate {gate.name}", flush=True)
    with Path(f"{gate}.started").open("w") as started:
        started.write(f"{os.getpid()}\n")
    with Path(f"{gate}.go").open() as go:
        word = go.readline().strip()
    print("through the gate", flush=True)
    output = workdir / "output.txt"
    output.write_text(f"{task['text']} {word}")
    return {"word": word}


class GateHandler:
    """A job that waits at its gate, then gives one output."""

    kinds = frozenset({JobKind.PLUGIN_BUILD, JobKind.KERNEL_EVALUATE})

    async def run(self, ctx: JobContext) -> JobResult:
        """Run the task and publish what it wrote."""
        params = ctx.spec.params
        summary = await ctx.run_task("e2e.gates:wait_at_gate", params, sandbox=None, env=CHILD_ENV)
        return JobResult(outputs=await ctx.publish({"output.txt": ctx.workdir / "output.txt"}), summary=summary)


class ParentHandler:
    """A job that submits children, one a gate, and waits for all."""

    kinds = frozenset({JobKind.KERNEL_GENERATE})

    async def run(self, ctx: JobContext) -> JobResult:
        """Submit every child, then wait for them in order."""
        gates = ctx.spec.params["gates"]
        children = [
            await ctx.submit_child(
                JobSpec(
                    kind=JobKind.KERNEL_EVALUATE,
                    arch_spec=ARCH,
                    params={"gate": gate, "text": "child"},
                    measuring=ctx.spec.params.get("measuring", False),
                ),
                {},
            )
            for gate in gates
        ]
        ctx.log("children: " + " ".join(children))
        states = [(await ctx.wait_job(child)).state for child in children]
        return JobResult(summary={"children": children, "states": [str(state) for state in states]})


def handlers(settings: AgentSettings) -> list[JobHandler]:
    """Give what this agent does."""
    return [ParentHandler()] if settings.extra["parents"] else [GateHandler()]


def facts(settings: AgentSettings) -> WorkerFacts:
    """Give what this agent is."""
    return WorkerFacts(arch_specs=(ARCH,), device_uid=settings.extra["device"] or "", device_name="a gate")


def main() -> None:
    """Run the daemon."""
    import click

    agent_main(
        "gaia",
        handlers,
        facts,
        options=[
            click.Option(["--parents"], is_flag=True, help="Take kernel.generate only, not the gates."),
            click.Option(["--device"], default="", help="Device uid."),
        ],
    )()


if __name__ == "__main__":
    main()
