"""Generate and choose a kernel on this machine: the agents' own handlers, without controller or network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ytk_core.agent.device import cpu_device_uid, runtime_dir
from ytk_core.agent.local import run_job_locally
from ytk_core.agent.local_results import LocalResults
from ytk_core.agent.tasks import run_blocking
from ytk_core.archspec import host_arch_specs
from ytk_core.errors import UserError
from ytk_core.files import atomic_write
from ytk_core.jobs import JobKind, JobSpec
from ytk_core.sandbox import SandboxMode
from ytk_gaia import search
from ytk_gaia.handlers import BASELINE_INPUT, EvaluateHandler, GenerateHandler
from ytk_gaia.report import Report, read_report

DEFAULT_ENGINE = "ov20264"


def generate_and_choose(
    region_path: Path,
    config: Mapping[str, Any],
    out_path: Path,
    report_path: Path | None = None,
    workdir: Path | None = None,
    *,
    arch_spec: str = "",
    sandbox: SandboxMode = "optional",
    baseline: Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Report:
    """Generate candidates for a region, measure them, and write the best as a kernel bundle.

    Args:
        region_path: The region's ``.pt2``.
        config: ``--config`` keys; see :mod:`ytk_core.kernelgen_config`.
        out_path: Where the bundle goes (``<Name>.module_source.py``).
        report_path: Where ``report.json`` goes; written also where no candidate passed.
        workdir: For intermediate files. Where it is given, finished evaluations are kept in it: a search that was ended goes on
            where it was. Default: a temporary directory that is removed.
        arch_spec: CPU arch spec to compile for; default: the best that this machine runs.
        sandbox: ``required`` refuses to work where no sandbox does.
        baseline: A kernel bundle of the same region that all candidates are compared with.
        log: Takes the tasks' output; default: standard error.

    Returns:
        The report.

    Raises:
        UserError: Region or configuration are wrong.
        CandidateError: No candidate passed; the report has been written.
        BoardError: Infrastructure.
    """
    checked = search.checked_config(config)
    for path in (region_path, *([baseline] if baseline else [])):
        if not path.is_file():
            raise UserError(
                f"{path}: no such file",
                code="no_such_file",
                hint="Run `ytk embedded prepare` first, or check the path.",
            )
    arch = arch_spec or str(host_arch_specs(DEFAULT_ENGINE)[0])
    spec = JobSpec(
        kind=JobKind.KERNEL_GENERATE,
        arch_spec=arch,
        params={"config": checked, "name": region_path.stem},
        wall_limit_s=search.search_limit_s(checked["budget"]),
    )
    files = {"region.pt2": region_path} | ({BASELINE_INPUT: baseline} if baseline else {})
    if workdir is None:
        with tempfile.TemporaryDirectory(prefix="ytk-gaia-") as directory:
            return _run(spec, files, out_path, report_path, Path(directory), sandbox, log)
    workdir.mkdir(parents=True, exist_ok=True)
    return _run(spec, files, out_path, report_path, workdir, sandbox, log)


def _run(
    spec: JobSpec,
    files: Mapping[str, Path],
    out_path: Path,
    report_path: Path | None,
    workdir: Path,
    sandbox: SandboxMode,
    log: Callable[[str], None] | None,
) -> Report:
    root = Path(tempfile.mkdtemp(prefix="search-", dir=workdir)).resolve()
    handler = EvaluateHandler(cpu_device_uid(), runtime_dir())
    found = root / "out" / "report.json"
    try:
        outcome = run_blocking(
            run_job_locally(
                GenerateHandler(),
                spec,
                files,
                root,
                children=[handler],
                sandbox_mode=sandbox,
                log=log,
                results=LocalResults(workdir / "results"),
            )
        )
    finally:
        if report_path is not None and found.is_file():
            with atomic_write(report_path) as file:
                file.write(found.read_bytes())
    with outcome.outputs["bundle.py"].open("rb") as source, atomic_write(out_path) as file:
        shutil.copyfileobj(source, file)
    return read_report(outcome.outputs["report.json"])
