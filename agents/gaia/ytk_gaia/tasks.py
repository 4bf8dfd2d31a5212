"""Gaia's task functions: what the agent runs in a child process. JSON in, JSON out, files below the work directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def generate(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Generate candidates and an evaluation task; see :func:`ytk_gaia.generator.run.generate`. Imports torch: sandbox it."""
    from ytk_gaia.generator.run import generate as run

    return run(task, workdir)


def evaluate(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Judge candidates. Trusted code without torch; it starts each candidate in a sandbox of its own.

    Args:
        task: ``arch_spec``, ``budget_s``, ``threads``, ``sandbox_mode``, and optionally ``worker_id``, ``device_uid``, ``baseline``
            (id of the candidate to compare with), ``rates`` (path of this machine's record of memory rates), ``compiled``
            (directory of libraries that were compiled before), ``order`` (ids: in which order candidates are built and measured).
        workdir: Has ``in/task.json``, ``in/task.npz``, ``in/candidates/<id>.py``; for a GPU ``in/variants/<n>/task.*``
            of further variants as well; gets ``out/evaluation.json``.

    Returns:
        ``verdicts``: id to verdict.
    """
    from ytk_core.agent.tasks import report_progress
    from ytk_core.archspec import ArchSpec
    from ytk_gaia.evaluator.compiled import Compiled
    from ytk_gaia.evaluator.judge import evaluate as judge
    from ytk_gaia.evaluator.options import JudgeOptions
    from ytk_gaia.evaluator.verdicts import write_evaluation
    from ytk_gaia.task_format import read_task, read_variant_tasks

    given = workdir / "in"
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted((given / "candidates").glob("*.py"))}
    order = [task.get("baseline", ""), *task.get("order", ()), *found]
    candidates = {name: found[name] for name in order if name in found}
    options = JudgeOptions(
        budget_s=float(task["budget_s"]),
        threads=int(task["threads"]),
        mode=task["sandbox_mode"],
        worker_id=task.get("worker_id", ""),
        device_uid=task.get("device_uid", ""),
        baseline=task.get("baseline", ""),
        rates=Path(task["rates"]) if task.get("rates") else None,
        compiled=Compiled(Path(task["compiled"])) if task.get("compiled") else None,
        progress=report_progress,
    )
    arch = ArchSpec.parse(task["arch_spec"])
    if arch.device_kind == "gpu":
        from ytk_gaia.evaluator import cuda_choice

        evaluation = cuda_choice.evaluate(read_variant_tasks(given), candidates, arch, workdir, options)
    else:
        evaluation = judge(read_task(given), candidates, arch, workdir, options)
    (workdir / "out").mkdir(exist_ok=True)
    write_evaluation(workdir / "out" / "evaluation.json", evaluation)
    return {"verdicts": {c.id: c.verdict.value for c in evaluation.candidates}}
