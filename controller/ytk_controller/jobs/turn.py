"""One transaction's work on jobs: applies events, carries out the commands that stay inside the store, keeps the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from ytk_controller.jobs.events import Command, EndChildren, Event, NotifyWatchers, ParentEnded, RememberResult
from ytk_controller.jobs.machine import JobMachine, Machine
from ytk_controller.jobs.model import JobRecord, Policy
from ytk_controller.store.base import Tx
from ytk_core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What every turn goes by. ``toolchain`` is the version of this software: part of every cache key."""

    policy: Policy
    toolchain: str
    machine: type[Machine] = JobMachine


@dataclass
class Turn:
    """The work of one transaction.

    ``outbox`` holds the commands for the world outside the store; they are carried out after the transaction is durable.
    """

    tx: Tx
    rules: Rules
    cause_id: str
    outbox: list[Command] = field(default_factory=list)
    now: float = field(init=False)
    _changed: dict[str, JobRecord] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.now = self.tx.now()

    @property
    def policy(self) -> Policy:
        """Times and limits."""
        return self.rules.policy

    def job(self, job_id: str) -> JobRecord:
        """Give a job.

        Raises:
            UserError: There is none (code ``not_found``).
        """
        job = self.tx.job(job_id)
        if job is None:
            raise UserError(f"there is no job {job_id!r}", code="not_found", hint="List jobs with `ytk jobs list`.")
        return job

    def apply(self, job: JobRecord, event: Event) -> JobRecord:
        """Apply an event to a job, save it, and carry out what follows inside the store.

        ``job`` may be older than this turn's own changes to it (the end of its parent, earlier in a loop, may have
        ended it too): then the newer record counts.
        """
        job = self._changed.get(job.id, job)
        machine = self.rules.machine(job, self.policy)
        commands = machine.handle(event)
        if machine.job != job:
            self.tx.save_job(machine.job)
            self._changed[job.id] = machine.job
        for command in commands:
            self.carry_out(command)
        # What followed may have come back to this job.
        return self._changed.get(job.id, job)

    def carry_out(self, command: Command) -> None:
        """Carry out a command, or keep it for after the transaction."""
        match command:
            case EndChildren(parent_id=parent_id):
                self.end_children(parent_id)
            case RememberResult(cache_key=key, job_id=job_id):
                self.tx.remember_result(key, job_id)
            case NotifyWatchers(job=job):
                self._replace_notice(job)
            case _:
                self.outbox.append(command)

    def end_children(self, parent_id: str) -> None:
        """Detach a job from all jobs that it submitted; those that nobody else wants are cancelled, with their own."""
        for child in self.tx.children(parent_id):
            self.apply(child, ParentEnded(now=self.now, cause_id=self.cause_id, parent_id=parent_id))

    def _replace_notice(self, job: JobRecord) -> None:
        # Watchers see each job once per transaction, as it is at the end.
        self.outbox[:] = [
            command for command in self.outbox if not (isinstance(command, NotifyWatchers) and command.job.id == job.id)
        ]
        self.outbox.append(NotifyWatchers(job=job))
