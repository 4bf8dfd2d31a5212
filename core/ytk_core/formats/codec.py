"""JSON of every file of ours: strict on reading, deterministic on writing, errors that name file and place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ytk_core.errors import FormatError
from ytk_core.files import atomic_write

T = TypeVar("T")

MAX_JSON_BYTES = 256 * 1024 * 1024


class _DuplicateKeyError(ValueError):
    pass


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(key)
        found[key] = value
    return found


def _no_constant(text: str) -> Any:
    msg = f"{text} is not JSON"
    raise ValueError(msg)


def parse_json(text: bytes, origin: str) -> Any:
    """Parse strict JSON: UTF-8, no duplicate keys, no NaN.

    Raises:
        FormatError: Names the origin and the place.
    """
    if len(text) > MAX_JSON_BYTES:
        msg = f"{origin}: {len(text)} bytes of JSON, more than {MAX_JSON_BYTES}"
        raise FormatError(msg, hint="Such a file was not written by ytk; make it again.")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_unique_pairs, parse_constant=_no_constant)
    except json.JSONDecodeError as err:
        msg = f"{origin}: not JSON: {err.msg} (line {err.lineno}, column {err.colno})"
        raise FormatError(msg, hint="The file is damaged or of another kind; make it again.") from err
    except UnicodeDecodeError as err:
        msg = f"{origin}: not UTF-8 at byte {err.start}"
        raise FormatError(msg, hint="The file is damaged or of another kind; make it again.") from err
    except _DuplicateKeyError as err:
        msg = f"{origin}: the key {err.args[0]!r} occurs twice in one object"
        raise FormatError(msg, hint="Keep one of them.") from err
    except RecursionError as err:
        msg = f"{origin}: nested too deeply"
        raise FormatError(msg, hint="Such a file was not written by ytk; make it again.") from err
    except ValueError as err:
        msg = f"{origin}: not JSON: {err}"
        raise FormatError(msg, hint="The file is damaged or of another kind; make it again.") from err


def check_schema_version(raw: Any, supported: int, origin: str, what: str) -> None:
    """Check that ``raw`` is an object whose ``schema_version`` is the supported one.

    Raises:
        FormatError: It is not an object, has no version, or another one.
    """
    if not isinstance(raw, dict):
        msg = f"{origin}: a {what} is an object, not {type(raw).__name__}"
        raise FormatError(msg, hint="The file is of another kind; check the path.")
    version = raw.get("schema_version")
    if type(version) is not int:
        msg = f"{origin}: schema_version is {version!r}, not an integer"
        raise FormatError(msg, hint=f"A {what} begins with schema_version: {supported}.")
    if version != supported:
        hint = (
            "It was written by a newer yasp-toolkit: upgrade this one."
            if version > supported
            else "It was written by an older yasp-toolkit: make the file again."
        )
        msg = f"{origin}: schema_version is {version}, this toolkit reads {supported}"
        raise FormatError(msg, code="schema_version", hint=hint)


def convert(raw: Any, kind: type[T], origin: str) -> T:
    """Convert plain values into a struct, refusing unknown keys and wrong types.

    Raises:
        FormatError: Names the origin and the path of the value (``$.inputs[0].rank``).
    """
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as err:
        msg = f"{origin}: {err}"
        raise FormatError(msg, hint="See docs/formats.md for the fields of this file.") from err


def decode(text: bytes, kind: type[T], origin: str, *, schema_version: int, what: str) -> T:
    """Parse a JSON object with a schema version into a struct.

    Raises:
        FormatError: It is not one; names origin and place.
    """
    raw = parse_json(text, origin)
    check_schema_version(raw, schema_version, origin, what)
    return convert(raw, kind, origin)


def encode(value: Any) -> bytes:
    """Give pretty JSON with a final newline; the same value gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=1) + b"\n"


def read_bytes(path: Path | str, what: str, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a whole file.

    Raises:
        FormatError: It does not exist, is no regular file, cannot be read, or is larger than ``limit``.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            msg = f"{path}: not a regular file, so not a {what}"
            raise FormatError(msg, hint="Check the path.")
        size = path.stat().st_size
        if size > limit:
            msg = f"{path}: {size} bytes, more than a {what} can have ({limit})"
            raise FormatError(msg, hint="The file is of another kind; check the path.")
        return path.read_bytes()
    except FileNotFoundError as err:
        msg = f"{path}: no such file (a {what} is expected here)"
        raise FormatError(msg, code="no_such_file", hint="Check the path, or make the file first.") from err
    except OSError as err:
        msg = f"{path}: cannot be read: {err.strerror}"
        raise FormatError(msg, hint="Check the permissions of the file.") from err


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as JSON, atomically."""
    with atomic_write(path) as stream:
        stream.write(encode(value))
