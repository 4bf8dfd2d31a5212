"""What ``ytk up`` keeps below ``YTK_HOME/up``: tokens, state, logs, the lock, and the status that other commands read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ytk_client.config import client_file
from ytk_core.errors import UserError
from ytk_core.files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN_BYTES = 32
_LOG_LIMIT_BYTES = 16 * 1024 * 1024


class PartStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the stack. ``state``: starting, ready, restarting, stopped."""

    name: str
    state: str = "starting"
    pid: int = 0
    restarts: int = 0
    log: str = ""


class UpStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The stack as its supervisor last wrote it; only true while the supervisor holds the lock."""

    pid: int
    home: str
    ready: bool = False
    address: str = ""
    sandbox: str = ""
    parts: tuple[PartStatus, ...] = ()


class Layout:
    """Paths below one home.

    Args:
        home: ``YTK_HOME``.
    """

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.root = self.home / "up"
        self.logs = self.root / "logs"
        self.client_toml = client_file(self.home)
        self.client_token = self.root / "tokens/client.key"
        self.agent_token = self.root / "tokens/agent.key"
        self.signing_key = self.state("forge") / "signing_key.pem"
        self.forge_keys = self.root / "forge.keys"
        self.more_keys = self.home / "trusted_keys"
        self._lock = self.root / "lock"
        self._status = self.root / "status.json"

    def create(self) -> None:
        """Make the directories, readable by their owner alone, and the tokens that do not exist yet.

        Raises:
            UserError: The home cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            for directory in (self.logs, self.client_token.parent):
                directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as err:
            raise UserError(
                f"cannot use {self.root}: {err.strerror}",
                code="bad_home",
                hint="Name a directory that you may write with --home or YTK_HOME.",
            ) from err
        for token in (self.client_token, self.agent_token):
            if not token.exists():
                with atomic_write(token, "w", permissions=0o600) as stream:
                    stream.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")

    def trust_forge(self) -> None:
        """Make Forge's signing key, where there is none, and the file of public keys that Kronos trusts.

        Raises:
            YtkError: As :func:`ytk_core.signing.load_or_create_key`.
        """
        from ytk_core.signing import load_or_create_key

        self.signing_key.parent.mkdir(parents=True, exist_ok=True)
        public = load_or_create_key(self.signing_key).public
        with atomic_write(self.forge_keys, "w") as stream:
            stream.write(
                f"# Written by `ytk up`: the key of this stack's Forge. Others belong into {self.more_keys}.\n"
            )
            stream.write(f"{public} {public.key_id}\n")

    def state(self, part: str) -> Path:
        """Give the state directory of one part."""
        return self.root / "state" / part

    def log(self, part: str) -> Path:
        """Give the log file of one part; one that has grown too large steps aside."""
        path = self.logs / f"{part}.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _LOG_LIMIT_BYTES:
                path.replace(path.with_suffix(".log.1"))
        return path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the home for one supervisor; the kernel frees it when the process dies, however it dies.

        Raises:
            UserError: Code ``already_running``.
        """
        with self._lock.open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                status = self.read_status()
                who = f" (process {status.pid}, controller {status.address or 'starting'})" if status else ""
                raise UserError(
                    f"`ytk up` is already running on {self.home}{who}",
                    code="already_running",
                    hint="`ytk up --status` shows it, `ytk up --stop` stops it; --home names another place.",
                ) from err
            yield

    def running(self) -> bool:
        """Whether a supervisor holds the home."""
        try:
            stream = self._lock.open("r")
        except FileNotFoundError:
            return False
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def write_status(self, status: UpStatus) -> None:
        """Replace the status."""
        with atomic_write(self._status, permissions=0o600) as stream:
            stream.write(msgspec.json.encode(status))

    def read_status(self) -> UpStatus | None:
        """Give the last written status; None where there is none that can be read."""
        try:
            return msgspec.json.decode(self._status.read_bytes(), type=UpStatus)
        except (OSError, msgspec.MsgspecError):
            return None

    def write_client_toml(self, address: str) -> None:
        """Leave address and key for the client's commands."""
        key_file = os.path.relpath(self.client_token, self.client_toml.parent)
        with atomic_write(self.client_toml, "w", permissions=0o600) as stream:
            stream.write("# Written by `ytk up`; removed when it stops.\n")
            # A JSON string is a TOML basic string.
            stream.write(f"controller = {json.dumps(address)}\napi_key_file = {json.dumps(key_file)}\n")

    def forget(self) -> None:
        """Remove what told others that the stack runs."""
        self.client_toml.unlink(missing_ok=True)
        self._status.unlink(missing_ok=True)
