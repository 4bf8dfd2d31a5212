"""How a command ends that stops following a job which goes on."""

from __future__ import annotations


class Detached(Exception):  # noqa: N818 - not an error: the job goes on, the command just ends
    """Ctrl-C while following a job.

    Args:
        job_id: The job that goes on.
        submission_id: Names this submitter where several joined one job; empty where not known.
    """

    def __init__(self, job_id: str, submission_id: str = "") -> None:
        super().__init__(job_id)
        self.job_id = job_id
        self.submission_id = submission_id
