"""Kernel bundles (``*.module_source.py``): three string literals in a Python file that is parsed and never executed.

``HEADER`` and ``SOURCE`` are C++ or CUDA C++; the unit that is compiled is ``#include "ytk_kernel.h"``, then HEADER, then
SOURCE (:func:`translation_unit`). ``PLUGIN_META`` is the YAML of :mod:`ytk_core.formats.plugin_meta`. The shape function is not in
the source: it is rendered from the meta's shape expressions.
"""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import msgspec

from ytk_core.digests import digest_bytes
from ytk_core.errors import FormatError
from ytk_core.formats.codec import read_bytes
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.formats.plugin_meta_checks import dump_meta, load_meta, validate

MAX_BUNDLE_BYTES = 16 * 1024 * 1024
LITERALS = ("HEADER", "SOURCE", "PLUGIN_META")
_HINT = "A kernel bundle is a Python file with the three string literals HEADER, SOURCE and PLUGIN_META and nothing else; see docs/formats.md."


class KernelBundle(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel: its C++ text and its contract."""

    header: str
    source: str
    meta: PluginMeta


def _bad(origin: str, message: str, line: int | None = None) -> FormatError:
    place = origin if line is None else f"{origin}:{line}"
    return FormatError(f"{place}: not a kernel bundle: {message}", code="bad_kernel_bundle", hint=_HINT)


def _literals(text: str, origin: str) -> dict[str, tuple[str, int]]:
    try:
        with warnings.catch_warnings():
            # An unknown escape in a hand-made bundle is a warning to Python; the text is the same either way.
            warnings.simplefilter("ignore")
            tree = ast.parse(text, filename=origin)
    except SyntaxError as err:
        raise _bad(origin, f"it is not Python ({err.msg})", err.lineno) from err
    except (ValueError, RecursionError, MemoryError) as err:
        raise _bad(origin, f"it is not Python ({err or type(err).__name__})") from err
    found: dict[str, tuple[str, int]] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in LITERALS:
                pass
            case _:
                word = ast.unparse(statement).splitlines()[0][:60]
                raise _bad(origin, f"{word!r} is not an assignment to {', '.join(LITERALS)}", statement.lineno)
        if name in found:
            raise _bad(origin, f"{name} is assigned twice", statement.lineno)
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            raise _bad(origin, f"{name} is {type(value).__name__}, not a string literal", statement.lineno)
        found[name] = (str(ast.literal_eval(value)), statement.lineno)
    for name in LITERALS:
        if name not in found:
            raise _bad(origin, f"{name} is missing")
    return found


def parse_bundle(text: str, origin: str = "<string>") -> KernelBundle:
    """Parse and check a bundle; nothing in it is executed.

    Raises:
        FormatError: Names ``origin`` and the line, or the path inside PLUGIN_META.
    """
    if len(text) > MAX_BUNDLE_BYTES:
        raise _bad(origin, f"{len(text)} characters, more than {MAX_BUNDLE_BYTES}")
    literals = _literals(text, origin)
    for name, (value, line) in literals.items():
        if "\0" in value or any(0xD800 <= ord(char) <= 0xDFFF for char in value):
            raise _bad(origin, f"{name} contains a NUL or a surrogate", line)
    meta = load_meta(literals["PLUGIN_META"][0], f"{origin}: PLUGIN_META")
    header, source = literals["HEADER"][0], literals["SOURCE"][0]
    for symbol in (meta.launcher.launch, meta.launcher.workspace):
        if symbol is not None and not re.search(rf"\b{symbol}\s*\(", header + source):
            raise _bad(origin, f"the launcher symbol {symbol!r} does not occur in SOURCE", literals["SOURCE"][1])
    return KernelBundle(header=header, source=source, meta=meta)


def read_bundle(path: Path | str) -> KernelBundle:
    """Read a bundle from a file.

    Raises:
        FormatError: It cannot be read, or is not a kernel bundle.
    """
    text = read_bytes(path, "kernel bundle", limit=MAX_BUNDLE_BYTES)
    try:
        return parse_bundle(text.decode("utf-8"), str(path))
    except UnicodeDecodeError as err:
        raise _bad(str(path), f"it is not UTF-8 at byte {err.start}") from err


def _literal(text: str) -> str:
    """Give a Python literal: raw and triple-quoted, so that C++ stays readable, where that gives the text back."""
    for quotes in ('"""', "'''"):
        candidate = f"r{quotes}\n{text}{quotes}" if text.startswith("\n") else f"r{quotes}{text}{quotes}"
        if quotes in text or text.endswith(("\\", quotes[0])) or "\r" in text or "\0" in text:
            continue
        candidate = f"r{quotes}{text}{quotes}"
        if ast.literal_eval(candidate) == text:
            return candidate
    return repr(text)


def render_bundle(bundle: KernelBundle) -> str:
    """Give the text of a bundle; deterministic, and :func:`parse_bundle` gives the same bundle back.

    Raises:
        FormatError: The meta is not valid.
    """
    validate(bundle.meta)
    values = (bundle.header, bundle.source, dump_meta(bundle.meta))
    return "\n".join(f"{name} = {_literal(value)}\n" for name, value in zip(LITERALS, values, strict=True))


def renamed(text: str, *, name: str, namespace: str | None = None, origin: str = "<string>") -> str:
    """Give the text of the same bundle under another plugin name (and namespace); header and source stay as they are.

    Raises:
        FormatError: The text is not a bundle, or the name is no C identifier.
    """
    bundle = parse_bundle(text, origin)
    meta = msgspec.structs.replace(
        bundle.meta, plugin_name=name, plugin_namespace=bundle.meta.plugin_namespace if namespace is None else namespace
    )
    return render_bundle(KernelBundle(header=bundle.header, source=bundle.source, meta=meta))


def translation_unit(bundle: KernelBundle) -> str:
    """Give the text that is compiled: ``ytk_kernel.h``, HEADER, SOURCE, with ``#line`` marks for readable diagnostics."""
    return f'#include "ytk_kernel.h"\n#line 1 "HEADER"\n{bundle.header}\n#line 1 "SOURCE"\n{bundle.source}\n'


def bundle_digest(bundle: KernelBundle) -> str:
    """Give the digest of a bundle's canonical text."""
    return digest_bytes(render_bundle(bundle).encode())
