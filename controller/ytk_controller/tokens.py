"""Bearer tokens: who is it, and what may it do. Only hashes are kept."""

from __future__ import annotations

import enum
import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ytk_controller.store.base import TokenRecord
from ytk_core.errors import UserError

_MIN_CHARS = 16


class Scope(enum.StrEnum):
    """What a token is for."""

    CLIENT = "client"
    AGENT = "agent"


def hash_token(token: str) -> str:
    """Give what is kept of a token. It is random and long: a slow password hash would add nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_token_file(text: str) -> TokenRecord:
    """Read the token of a ``--bootstrap-token SCOPE:NAME:FILE`` argument.

    Raises:
        UserError: The argument is malformed, the file cannot be read, or the token is too short to be a secret.
    """
    scope, _, rest = text.partition(":")
    name, _, file = rest.partition(":")
    if scope not in set(Scope) or not name or not file:
        raise UserError(
            f"not a bootstrap token: {text!r}",
            code="bad_token",
            hint=f"Write SCOPE:NAME:FILE with a scope of {', '.join(Scope)}.",
        )
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as err:
        raise UserError(
            f"cannot read the token file {file}: {err}", code="bad_token", hint="Make it, with mode 0600."
        ) from err
    if len(token) < _MIN_CHARS:
        raise UserError(
            f"the token in {file} has {len(token)} characters; it has to have {_MIN_CHARS} at least",
            code="bad_token",
            hint="Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return TokenRecord(name=name, scope=scope, sha256=hash_token(token))


def read_token_files(texts: Sequence[str]) -> tuple[TokenRecord, ...]:
    """Read all bootstrap tokens.

    Raises:
        UserError: As :func:`read_token_file`; or two have one name, so that the later would replace the earlier.
    """
    records = tuple(read_token_file(text) for text in texts)
    names = Counter(record.name for record in records)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise UserError(
            f"two bootstrap tokens have the name {twice[0]!r}",
            code="bad_token",
            hint="Names are unique over both scopes; call them e.g. alice and board-agent.",
        )
    return records


class Tokens:
    """The tokens that are valid.

    Args:
        records: All tokens.
        clock: Gives seconds since the epoch.
    """

    def __init__(self, records: Iterable[TokenRecord], clock: Callable[[], float] = time.time) -> None:
        self._records = tuple(records)
        self._clock = clock

    def find(self, token: str) -> TokenRecord | None:
        """Give the token's record; None where it is unknown or expired.

        Every record is compared, each in constant time: the answer's time tells nothing about the others.
        """
        wanted = hash_token(token)
        found = None
        for record in self._records:
            if hmac.compare_digest(record.sha256, wanted):
                found = record
        if found is None or 0 < found.expires_at <= self._clock():
            return None
        return found
