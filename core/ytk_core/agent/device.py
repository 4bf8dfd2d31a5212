"""One measurement at a time per device and machine, whoever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ytk_core.digests import digest_bytes
from ytk_core.errors import BoardError

_POLL_S = 0.05
_SLOWEST_POLL_S = 1.0


def runtime_dir() -> Path:
    """Give this user's directory for locks, made if needed.

    Raises:
        BoardError: Code ``runtime_dir``: somebody else's directory is in its place.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "yasp-toolkit") if base else Path(tempfile.gettempdir(), f"yasp-toolkit-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.is_symlink():
        raise BoardError(f"{path} belongs to somebody else", code="runtime_dir", hint="Set XDG_RUNTIME_DIR.")
    return path


def cpu_device_uid() -> str:
    """Give the name of this machine's processor as a device: alike for every agent of the machine."""
    for source in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):  # a container may lack the first
        with contextlib.suppress(OSError):
            text = Path(source).read_text(encoding="ascii").strip()
            if text:
                return f"cpu-{digest_bytes(text.encode()).rpartition(':')[2][:16]}"
    return f"cpu-{os.uname().nodename}"


class DeviceLock:
    """The right to measure on one device: an advisory lock that dies with its process.

    Not re-entrant; one object serves one job.

    Args:
        device_uid: The device. Two agents that name it alike exclude each other.
        directory: Where the lock files are; :func:`runtime_dir` by default.
    """

    def __init__(self, device_uid: str, directory: Path | None = None) -> None:
        self._device_uid = device_uid
        self._directory = directory
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the device."""
        return self._descriptor is not None

    async def acquire(self, on_wait: Callable[[], None] | None = None) -> None:
        """Wait for the device; ``on_wait`` is called once where it is not free.

        A blocking flock in a thread could not be cancelled: the lock is tried, ever more slowly.
        """
        name = digest_bytes(self._device_uid.encode()).rpartition(":")[2][:32]
        directory = await asyncio.to_thread(runtime_dir) if self._directory is None else self._directory
        descriptor = os.open(directory / f"device-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            delay_s = _POLL_S
            while not _try_lock(descriptor):
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 1.5, _SLOWEST_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the device back; nothing happens where it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Give the device back for a while, if it is held, and wait for it afterwards."""
        if not self.held:
            yield
            return
        self.release()
        try:
            yield
        finally:
            await self.acquire()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
