"""What local jobs gave, kept by what decides it: a search that was ended goes on where it was.

``results.jsonl`` in a directory, one line per finished job, to which lines are only ever added, and the outputs beside it by
digest. Of equal keys the first line counts: a finished job is done once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ytk_core.digests import digest_bytes
from ytk_core.files import atomic_write
from ytk_core.jobs import JobResult, JobSpec

_FILE = "results.jsonl"


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    result: JobResult


def result_key(spec: JobSpec) -> str:
    """Give what decides a job's result: everything of its spec but limits of time and place in the queue."""
    decisive = [
        spec.kind,
        spec.schema_version,
        spec.arch_spec,
        sorted((blob.name, blob.digest) for blob in spec.inputs),
        spec.params,
        sorted(spec.requirements),
        spec.measuring,
    ]
    return digest_bytes(msgspec.json.encode(decisive, order="deterministic"))


class LocalResults:
    """Results in a directory.

    Args:
        directory: Made where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._known: dict[str, JobResult] = {}
        for line in self._lines():
            self._known.setdefault(line.key, line.result)

    def _lines(self) -> list[_Line]:
        path, found = self._directory / _FILE, []
        for text in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                found.append(msgspec.json.decode(text, type=_Line))
            except msgspec.DecodeError:
                continue  # cut off by a kill; the job is done again
        return found

    def _blob(self, digest: str) -> Path:
        return self._directory / "blobs" / digest.rpartition(":")[2]

    def find(self, spec: JobSpec) -> tuple[JobResult, dict[str, Path]] | None:
        """Give an equal job's result and its outputs by digest; None where there is none, or an output is gone."""
        result = self._known.get(result_key(spec))
        if result is None:
            return None
        paths = {blob.digest: self._blob(blob.digest) for blob in result.outputs}
        return (result, paths) if all(path.is_file() for path in paths.values()) else None

    def add(self, spec: JobSpec, result: JobResult, outputs: Mapping[str, Path]) -> None:
        """Keep a result.

        Args:
            spec: The job.
            result: What it gave.
            outputs: Its outputs by digest.
        """
        for digest, path in outputs.items():
            target = self._blob(digest)
            if not target.is_file():
                target.parent.mkdir(exist_ok=True)
                with path.open("rb") as source, atomic_write(target) as file:
                    shutil.copyfileobj(source, file)
        line = msgspec.json.encode(_Line(key=result_key(spec), result=result)) + b"\n"
        descriptor = os.open(self._directory / _FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            cut = size and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" + line if cut else line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._known.setdefault(result_key(spec), result)
