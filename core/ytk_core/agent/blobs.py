"""How a job's files come and go: one form for every context, whoever stores the blobs."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from ytk_core.agent.files import blob_path, check_output, place_inside
from ytk_core.errors import UserError
from ytk_core.jobs import JobSpec, NamedBlob


class BlobContext(abc.ABC):
    """The part of a :class:`~ytk_core.agent.handler.JobContext` that moves blobs.

    A subclass says where they come from (:meth:`_bring`) and where they go (:meth:`_store`).

    Args:
        spec: The job.
        workdir: Its directory.
    """

    def __init__(self, spec: JobSpec, workdir: Path) -> None:
        self.spec = spec
        self.workdir = workdir

    @abc.abstractmethod
    async def _bring(self, blob: NamedBlob, dest: Path) -> None:
        """Put a blob's content at a path that does not exist yet; its directory does."""

    @abc.abstractmethod
    async def _store(self, files: Mapping[str, Path]) -> Sequence[NamedBlob]:
        """Keep files that :meth:`publish` has checked."""

    async def fetch(self, name: str) -> Path:
        """Bring one input."""
        for blob in self.spec.inputs:
            if blob.name == name:
                return await self._place(blob, blob_path(self.workdir / "in", name))
        raise UserError(f"the job has no input {name!r}", code="input_missing")

    async def fetch_all(self, prefix: str = "") -> dict[str, Path]:
        """Bring the inputs whose names begin with ``prefix``."""
        names = [blob.name for blob in self.spec.inputs if blob.name.startswith(prefix)]
        return {name: await self.fetch(name) for name in names}

    async def fetch_blob(self, blob: NamedBlob) -> Path:
        """Bring a blob that is no input."""
        directory = self.workdir / "blobs" / blob.digest.rpartition(":")[2]
        return await self._place(blob, blob_path(directory, blob.name))

    async def publish(self, files: Mapping[str, Path]) -> tuple[NamedBlob, ...]:
        """Check outputs and hand them over."""

        def check() -> None:
            for name, path in files.items():
                blob_path(Path(), name)
                check_output(path, self.workdir)

        await asyncio.to_thread(check)
        return tuple(await self._store(files))

    async def _place(self, blob: NamedBlob, dest: Path) -> Path:
        def lacking() -> bool:
            if place_inside(dest, self.workdir).exists():
                return False
            dest.parent.mkdir(parents=True, exist_ok=True)
            return True

        if await asyncio.to_thread(lacking):
            await self._bring(blob, dest)
        return dest
