"""Generate and choose a kernel on this machine, by the same tasks that the agents run, without controller or network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ytk_core.agent.tasks import run_task_locally
from ytk_core.archspec import host_arch_specs
from ytk_core.errors import UserError
from ytk_core.files import atomic_write
from ytk_core.sandbox import SandboxMode
from ytk_gaia import search
from ytk_gaia.evaluator.verdicts import Evaluation, read_evaluation
from ytk_gaia.report import Report, make_report, require_winner, write_report

DEFAULT_ENGINE = "ov20264"


def _copy_task(generated: Path, ids: Sequence[str], workdir: Path) -> None:
    given = workdir / "in"
    (given / "candidates").mkdir(parents=True)
    for name in ("task.json", "task.npz"):
        shutil.copyfile(generated / name, given / name)
    for name in ids:
        shutil.copyfile(generated / "candidates" / f"{name}.py", given / "candidates" / f"{name}.py")


def _evaluate(
    generated: Path, ids: Sequence[str], workdir: Path, arguments: Mapping[str, Any], log: Callable[[str], None] | None
) -> Evaluation:
    _copy_task(generated, ids, workdir)
    limit = search.evaluation_limit_s(float(arguments["budget_s"]))
    run_task_locally(search.EVALUATE_TASK, arguments, workdir, wall_limit_s=limit, log=log)
    return read_evaluation(workdir / "out" / "evaluation.json")


def generate_and_choose(
    region_path: Path,
    config: Mapping[str, Any],
    out_path: Path,
    report_path: Path | None = None,
    workdir: Path | None = None,
    *,
    arch_spec: str = "",
    sandbox: SandboxMode = "optional",
    log: Callable[[str], None] | None = None,
) -> Report:
    """Generate candidates for a region, measure them, and write the best as a kernel bundle.

    Args:
        region_path: The region's ``.pt2``.
        config: ``--config`` keys; see :mod:`ytk_core.kernelgen_config`.
        out_path: Where the bundle goes (``<Name>.module_source.py``).
        report_path: Where ``report.json`` goes; written also where no candidate passed.
        workdir: For intermediate files; default: a temporary directory that is removed.
        arch_spec: CPU arch spec to compile for; default: the best that this machine runs.
        sandbox: ``required`` refuses to work where no sandbox does.
        log: Takes the tasks' output; default: standard error.

    Returns:
        The report.

    Raises:
        UserError: Region or configuration are wrong.
        CandidateError: No candidate passed; the report has been written.
        BoardError: Infrastructure.
    """
    checked = search.checked_config(config)
    if not region_path.is_file():
        raise UserError(
            f"{region_path}: no such file",
            code="no_such_file",
            hint="Run `ytk embedded prepare` first, or check the path.",
        )
    arch = arch_spec or str(host_arch_specs(DEFAULT_ENGINE)[0])
    if workdir is None:
        with tempfile.TemporaryDirectory(prefix="ytk-gaia-") as directory:
            return _run(region_path, checked, out_path, report_path, Path(directory), arch, sandbox, log)
    workdir.mkdir(parents=True, exist_ok=True)
    return _run(region_path, checked, out_path, report_path, workdir, arch, sandbox, log)


def _run(
    region_path: Path,
    config: Mapping[str, Any],
    out_path: Path,
    report_path: Path | None,
    workdir: Path,
    arch: str,
    sandbox: SandboxMode,
    log: Callable[[str], None] | None,
) -> Report:
    root = Path(tempfile.mkdtemp(prefix="search-", dir=workdir)).resolve()
    generate_dir = root / "generate"
    (generate_dir / "in").mkdir(parents=True)
    shutil.copyfile(region_path, generate_dir / "in" / "region.pt2")
    name = region_path.stem
    generated = run_task_locally(
        search.GENERATE_TASK,
        search.generate_arguments("in/region.pt2", name, config, arch),
        generate_dir,
        sandbox=search.generator_sandbox(),
        wall_limit_s=search.GENERATE_LIMIT_S,
        env=search.GENERATE_ENV,
        mode=sandbox,
        log=log,
    )
    ids = [c["id"] for c in generated["candidates"]]
    groups = search.batches(ids)
    arguments = {"arch_spec": arch, "threads": config["threads"], "sandbox_mode": sandbox}
    evaluations = []
    for number, group in enumerate(groups):
        budget = config["budget"] * len(group) / len(ids)
        given = {**arguments, "budget_s": budget}
        evaluations.append(_evaluate(generate_dir / "out", group, root / f"evaluate-{number}", given, log))
    last = search.finalists(evaluations)
    if len(groups) > 1 and last:
        given = {**arguments, "budget_s": config["budget"] / 2}
        evaluations.append(_evaluate(generate_dir / "out", last, root / "evaluate-final", given, log))
    report = make_report(generated, evaluations, config=config, arch_spec=arch)
    if report_path is not None:
        write_report(report_path, report)
    winner = require_winner(report)
    with atomic_write(out_path) as file:
        file.write((generate_dir / "out" / "candidates" / f"{winner}.py").read_bytes())
    return report
