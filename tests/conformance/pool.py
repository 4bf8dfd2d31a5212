"""Run entries in worker processes that are reused, limited in time, and replaced when they die."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest import mock

import msgspec
import psutil

from conformance.outcome import EntryFinding, Outcome, SampleFinding
from conformance.worker import serve

WALL_FACTOR = 10
"""A sample that sleeps hangs too; on a loaded machine one that works gets a fraction of a core, so this is generous."""


@dataclass(frozen=True)
class Job:
    """One entry in one dtype."""

    entry: str
    dtype: str
    profile: str
    samples: int


@dataclass
class _Worker:
    process: Any
    connection: Connection
    job: Job | None = None
    found: list[SampleFinding] = field(default_factory=list)
    since_wall: float = 0.0
    since_cpu: float = 0.0

    def start(self, job: Job, found: list[SampleFinding]) -> None:
        self.job, self.found = job, found
        self.connection.send((job.entry, job.dtype, job.profile, job.samples, len(found)))
        self.mark()

    def mark(self) -> None:
        self.since_wall, self.since_cpu = time.monotonic(), self._cpu()

    def overdue(self, limit_s: float) -> bool:
        return self._cpu() - self.since_cpu > limit_s or time.monotonic() - self.since_wall > WALL_FACTOR * limit_s

    def _cpu(self) -> float:
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return self.since_cpu
        return float(times.user + times.system)


class Pool:
    """Examines jobs with ``size`` workers; a sample may take ``limit_s`` of processor time.

    ``source`` names the module with the function ``entries``.
    """

    def __init__(self, size: int, limit_s: float, source: str = "conformance.opdb") -> None:
        self._source = source
        self._limit_s = limit_s
        # Workers are forked from one server that has imported everything: a new one costs milliseconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["conformance.worker", "conformance.preload"])
        # It searches as its environment says only, and pytest puts folders in front without that: it would preload nothing.
        with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
            self._workers = [self._spawn() for _ in range(size)]

    def run(self, jobs: Sequence[Job], on_done: Callable[[EntryFinding], None]) -> None:
        """Examine all jobs; ``on_done`` gets each finding as it comes."""
        todo = deque(jobs)
        for index, worker in enumerate(self._workers):
            if todo and worker.job is None:
                self._workers[index].start(todo.popleft(), [])
        while any(worker.job for worker in self._workers):
            wait([worker.connection for worker in self._workers if worker.job], timeout=1)
            for index, worker in enumerate(self._workers):
                if worker.job is None:
                    continue
                finished = self._advance(index)
                if finished is not None:
                    on_done(finished)
                    if todo:
                        self._workers[index].start(todo.popleft(), [])

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.join(10)
            worker.process.kill()
            worker.process.join()

    def _spawn(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self._source), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _advance(self, index: int) -> EntryFinding | None:
        """Take in what a worker says, or that it died or hangs; give the entry's finding if that ends it."""
        worker = self._workers[index]
        job = worker.job
        assert job is not None
        ended: SampleFinding | None = None
        try:
            if worker.connection.poll():
                kind, _, data = worker.connection.recv()
                if kind == "done":
                    worker.job = None
                    return EntryFinding(name=job.entry, dtype=job.dtype, samples=tuple(worker.found))
                worker.found.append(msgspec.convert(data, SampleFinding))
                worker.mark()
                return None
        except (EOFError, ConnectionResetError):
            worker.process.join()
            ended = SampleFinding(outcome=Outcome.CRASH, code="died", reason=f"exit code {worker.process.exitcode}")
        if ended is None and worker.overdue(self._limit_s):
            ended = SampleFinding(outcome=Outcome.HANG, code="time_limit", reason=f"more than {self._limit_s:g} s")
        if ended is None:
            return None
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        found = [*worker.found, ended]
        self._workers[index] = self._spawn()
        if len(found) < job.samples:
            self._workers[index].start(job, found)
            return None
        return EntryFinding(name=job.entry, dtype=job.dtype, samples=tuple(found))
