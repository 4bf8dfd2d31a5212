"""Content digests: ``blake3:<64 hex digits>``."""

from __future__ import annotations

import re
from pathlib import Path

from blake3 import blake3

from ytk_core.errors import UserError

PREFIX = "blake3:"
# Large enough that system calls do not show beside the hash.
_BUFFER_BYTES = 1024 * 1024
_PATTERN = re.compile(r"blake3:[0-9a-f]{64}\Z")


def digest_bytes(data: bytes) -> str:
    """Give the digest of a byte string."""
    return PREFIX + blake3(data).hexdigest()


def digest_file(path: Path) -> str:
    """Give the digest of a file, in bounded memory.

    Not through a memory map: its pages count as resident, and a gigabyte of weights would look like a gigabyte of use.

    Raises:
        OSError: The file cannot be read.
    """
    hasher = blake3()
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return PREFIX + hasher.hexdigest()


def check_digest(text: str) -> str:
    """Return the digest if it is well formed.

    Raises:
        UserError: It is not ``blake3:`` and 64 lower-case hex digits.
    """
    if not _PATTERN.match(text):
        msg = f"not a digest: {text!r}"
        raise UserError(msg, code="bad_digest", hint="A digest is 'blake3:' and 64 lower-case hex digits.")
    return text


def blob_name(digest: str) -> str:
    """Give the hex part, which is the blob's name in a store."""
    return check_digest(digest)[len(PREFIX) :]
