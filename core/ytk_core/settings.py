"""Read a TOML file into a struct, strictly: an unknown key or a bad value is an error with file, key, value and what is allowed."""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ytk_core.errors import FormatError, UserError

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_CODE = "bad_config"


def load_toml(path: Path, kind: type[T], *, code: str = _CODE) -> T:
    """Give the struct that a TOML file holds.

    Args:
        path: The file.
        kind: A struct; its fields are the allowed keys, nested structs are tables. Fields are renamed as the struct
            says (``rename="kebab"``).
        code: Of the errors.

    Raises:
        UserError: The file cannot be read.
        FormatError: It is not TOML, or a key or a value is not allowed; the message names file, key and value, the
            hint what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as err:
        raise FormatError(f"{path} is not UTF-8: {err}", code=code) from err
    except OSError as err:
        raise UserError(f"cannot read {path}: {err.strerror}", code=code) from err
    return parse_toml(text, kind, origin=str(path), code=code)


def parse_toml(text: str, kind: type[T], *, origin: str, code: str = _CODE) -> T:
    """Give the struct that TOML text holds; see :func:`load_toml`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise FormatError(f"{origin} is not TOML: {err}", code=code) from err
    return convert_settings(values, kind, origin=origin, code=code)


def convert_settings(values: Mapping[str, Any], kind: type[T], *, origin: str, code: str = _CODE) -> T:
    """Give the struct that a mapping holds; unknown keys are refused whether or not the struct forbids them.

    Raises:
        FormatError: As :func:`load_toml`.
    """
    _refuse_unknown(values, kind, "", origin, code)
    try:
        return msgspec.convert(values, kind, dec_hook=_decode)
    except msgspec.ValidationError as err:
        place = _PLACE.search(str(err))
        path = place["path"].lstrip(".") if place else ""
        reason = str(err)[: place.start()] if place else str(err)
        found = _at(values, path)
        shown = f"{path} = {found!r}" if path else "the file"
        allowed = _allowed(_type_at(kind, path))
        raise FormatError(f"{origin}: {shown}: {reason}", code=code, hint=f"Allowed: {allowed}.") from err


def _decode(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"settings of type {kind}")


def _refuse_unknown(values: Mapping[str, Any], kind: Any, prefix: str, origin: str, code: str) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in fields:
            raise FormatError(
                f"{origin}: unknown key {prefix}{key} = {value!r}", code=code, hint=f"Allowed: {', '.join(fields)}."
            )
        nested = _struct_of(fields[key].type)
        if nested is not None and isinstance(value, Mapping):
            _refuse_unknown(value, nested, f"{prefix}{key}.", origin, code)


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    candidates = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    structs = [each for each in candidates if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return structs[0] if len(structs) == 1 else None


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in {typing.Union, types.UnionType}


def _at(values: Any, path: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(values, Mapping):
            values = values.get(part)
        elif isinstance(values, list) and part.isdigit():
            values = values[int(part)]
        else:
            return values
    return values


def _type_at(kind: Any, path: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", path):
        struct = _struct_of(kind)
        if struct is not None:
            kind = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}.get(part, Any)
        else:
            inner = [each for each in typing.get_args(kind) if each is not Ellipsis]
            kind = inner[-1] if inner else Any
    return kind


def _allowed(annotation: Any) -> str:
    """Name the values of a type as a person would."""
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(repr(value) for value in typing.get_args(annotation))
    if _is_union(annotation):
        return " or ".join(_allowed(each) for each in typing.get_args(annotation) if each is not types.NoneType)
    if typing.get_origin(annotation) is typing.Annotated:
        base, *metas = typing.get_args(annotation)
        limits = [
            f"{name} {getattr(meta, name)!r}"
            for meta in metas
            if isinstance(meta, msgspec.Meta)
            for name in ("ge", "gt", "le", "lt", "pattern", "min_length", "max_length")
            if getattr(meta, name) is not None
        ]
        return f"{_allowed(base)} ({', '.join(limits)})" if limits else _allowed(base)
    struct = _struct_of(annotation)
    if struct is not None:
        return "a table with " + ", ".join(field.encode_name for field in msgspec.structs.fields(struct))
    if isinstance(annotation, type) and hasattr(annotation, "__members__"):
        return ", ".join(repr(each.value) for each in annotation.__members__.values())
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    origin = typing.get_origin(annotation) or annotation
    if origin in {list, tuple, set, frozenset}:
        inner = [each for each in typing.get_args(annotation) if each is not Ellipsis]
        return "a list, each " + _allowed(inner[0]) if inner else "a list"
    if origin is dict:
        return "a table"
    return names.get(annotation, str(annotation))
