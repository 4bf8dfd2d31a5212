"""What an agent implements for its job kinds: a handler, and the context that the runtime gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ytk_core.agent.files import blob_path
from ytk_core.errors import FailureClass
from ytk_core.jobs import JobKind, JobResult, JobSpec, Lease, NamedBlob
from ytk_core.sandbox import SandboxMode, SandboxPolicy
from ytk_core.workers import JobView


class JobContext(Protocol):
    """One attempt of one job.

    Everything awaitable here may raise ``asyncio.CancelledError``; by then the running child is dead. A handler lets
    it pass.
    """

    @property
    def spec(self) -> JobSpec:
        """What to do."""

    @property
    def lease(self) -> Lease:
        """The right to do it."""

    @property
    def worker_id(self) -> str:
        """Who does it."""

    @property
    def workdir(self) -> Path:
        """A fresh directory; removed after the job."""

    @property
    def sandbox_mode(self) -> SandboxMode:
        """What the operator allows; for :func:`ytk_core.sandbox.wrap` inside a trusted task."""

    async def fetch(self, name: str) -> Path:
        """Bring one input blob to ``workdir/in/<name>``, verified.

        Raises:
            UserError: Code ``input_missing``: the spec has no such input.
            BoardError: It could not be transferred.
        """

    async def fetch_all(self, prefix: str = "") -> dict[str, Path]:
        """Bring every input whose name begins with ``prefix``; gives name to path, empty where there is none."""

    async def publish(self, files: Mapping[str, Path]) -> tuple[NamedBlob, ...]:
        """Upload files as outputs; only what the store lacks is sent.

        Raises:
            ToolkitError: Code ``output_missing``: a file is not there.
            CandidateError: Code ``bad_output``: a path in the workdir leads out of it, or is no plain file.
        """

    def log(self, text: str) -> None:
        """Add a line to the job's log."""

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is; fraction in [0, 1]. Only the latest is kept."""

    async def run_task(
        self,
        ref: str,
        task: Mapping[str, Any],
        *,
        sandbox: SandboxPolicy | None,
        wall_limit_s: float | None = None,
        env: Mapping[str, str] | None = None,
        blame: FailureClass | None = None,
        subdir: str = "",
    ) -> dict[str, Any]:
        """Run a task function in a child process (:mod:`ytk_core.agent.tasks`).

        Args:
            ref: ``module:function``.
            task: JSON object for it.
            sandbox: None for trusted code only.
            wall_limit_s: Of this child; the job's own wall limit holds besides.
            env: More environment variables.
            blame: Class of a failure that the child's own code caused; by default ours for trusted and the
                candidate's for sandboxed code.
            subdir: Runs in this directory below the workdir; needed where two tasks of one job run at once.

        Raises:
            YtkError: As :func:`ytk_core.agent.tasks.collect`.
        """

    async def submit_child(self, spec: JobSpec, files: Mapping[str, Path]) -> str:
        """Submit a job as this one's child and give its id.

        ``files`` are uploaded and become inputs of ``spec``, beside those that it has. A child ends with its parent.
        """

    async def wait_job(self, job_id: str) -> JobView:
        """Wait until a job is terminal. A measuring job lends its device out while it waits."""

    async def cancel_child(self, job_id: str) -> None:
        """Cancel a child that is not needed any more."""

    async def fetch_blob(self, blob: NamedBlob) -> Path:
        """Bring a blob that is no input of this job, e.g. a child's output, to ``workdir/blobs/<hex>/<file name>``."""


class JobHandler(Protocol):
    """Does the jobs of some kinds. Raises YtkError subclasses; the runtime turns them into the job's failure."""

    @property
    def kinds(self) -> frozenset[JobKind]:
        """What it takes."""

    async def run(self, ctx: JobContext) -> JobResult:
        """Do one job."""


__all__ = ("JobContext", "JobHandler", "blob_path")
