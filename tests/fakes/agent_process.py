"""A whole agent as a process: ``python -m fakes.agent_process --controller ... --state-dir ...``.

Its jobs run the tasks of :mod:`fakes.child_tasks` that their parameters name.
"""

from __future__ import annotations

from typing import Any

import click

from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_core.jobs import JobKind, JobResult

from fakes.handlers import Handler, child


async def run_named_task(ctx: Any) -> JobResult:
    result = await child(ctx, ctx.spec.params["task"], ctx.spec.params.get("argument"))
    return JobResult(summary=result)


def make_handlers(settings: AgentSettings) -> list[Handler]:
    assert settings.extra["mode"] in {"a", "b"}
    return [Handler(run_named_task, JobKind.PLUGIN_BUILD)]


def describe(settings: AgentSettings) -> WorkerFacts:
    return WorkerFacts(arch_specs=("spec-" + settings.extra["mode"],), capabilities=("torch==2.13.0",))


main = agent_main(
    "test",
    make_handlers,
    describe,
    options=[click.Option(["--mode"], type=click.Choice(["a", "b"]), default="a", help="Of the test.")],
)

if __name__ == "__main__":
    main()
