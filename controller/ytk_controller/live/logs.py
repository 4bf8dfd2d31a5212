"""Log files: one per attempt of a job. A reader sees them as one text, in the order of the attempts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ytk_core.errors import BoardError, ToolkitError, UserError
from ytk_core.files import disk_error
from ytk_core.rpc_errors import OffsetError

MAX_ATTEMPT_BYTES = 64 << 20
"""More than this is no log; the disk is shared by all jobs."""
READ_BYTES = 1 << 18

_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


class JobLogs:
    """The log files below a directory. Blocking; runs on threads.

    An attempt's file no longer grows once the next attempt has begun (its lease is stale then), so offsets into the
    joined text stay true.

    Args:
        root: The directory; made where it does not exist.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root

    def append(self, job_id: str, fence: int, offset: int, data: bytes) -> int:
        """Append to an attempt's log at an offset; what is there already is dropped.

        Returns:
            The offset to continue from.

        Raises:
            OffsetError: The log ends before ``offset`` (code ``log_gap``).
            UserError: The log is longer than any log (code ``too_large``).
            BoardError: The disk is full or fails.
        """
        path = self._directory(job_id) / f"{fence:08d}.log"
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            with path.open("ab") as file:
                length = os.fstat(file.fileno()).st_size
                if offset > length:
                    raise OffsetError(
                        f"the log of job {job_id} ends at {length}, not at {offset}",
                        code="log_gap",
                        offset=length,
                        hint=f"Send it from {length} on.",
                    )
                fresh = data[length - offset :]
                if length + len(fresh) > MAX_ATTEMPT_BYTES:
                    raise UserError(
                        f"the log of job {job_id} would grow beyond {MAX_ATTEMPT_BYTES} bytes",
                        code="too_large",
                        hint="Drop the rest of the log; the job itself may go on.",
                    )
                file.write(fresh)
                return length + len(fresh)
        except OSError as err:
            raise disk_error(err, path) or BoardError(
                f"cannot write {path}: {err}", code="disk", hint="Check the disk of the state directory."
            ) from err

    def read(self, job_id: str, offset: int) -> bytes:
        """Give the next bytes of the joined text from an offset on; empty at its end."""
        start = 0
        for path in sorted(self._directory(job_id).glob("*.log")):
            length = path.stat().st_size
            if offset < start + length:
                with path.open("rb") as file:
                    file.seek(offset - start)
                    return file.read(READ_BYTES)
            start += length
        return b""

    def _directory(self, job_id: str) -> Path:
        if not _SAFE_ID.match(job_id):
            raise ToolkitError(f"not a job id of ours: {job_id!r}")
        return self._root / job_id
