"""The words of ``prepare --plugin``: ``<namespace>::<PluginName>=<OpsName>[:around][@modifier=...]``.

Text in, :class:`Selector` out; no model is looked at here. Every error shows the place in the selector.
"""

from __future__ import annotations

import difflib
import enum
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ytk_core.errors import UserError

GRAMMAR = "<namespace>::<PluginName>=<OpsName>[:around][@where=<globs>][@lift=<how>][@nojoin]"
_NAMESPACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"\w+(\.\w+)*")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# A module's second call has a path like `head@1`, so an @ before a digit begins no modifier.
_MODIFIER = re.compile(r"@(?!\d)")
_AROUND = ":around"


class Kind(enum.StrEnum):
    """What stands on the right of ``=``."""

    CLASS = "class"
    """Every instance of a module class."""
    MODULE = "mod"
    """Modules by the end of their qualified name."""
    CALL = "call"
    """Every call of a Python function or an aten operator, by dotted path."""
    SPAN = "span"
    """What lies on the paths between two nodes of ``fx_nodes.json``."""
    NODES = "nodes"
    """A list of nodes of ``fx_nodes.json``."""


class Lift(enum.StrEnum):
    """How the weights of a region reach the plugin."""

    AUTO = "auto"
    """``fold_conv_bn`` for a swapped module with one convolution; else as they are, as inputs."""
    FOLD = "fold_conv_bn"
    """One folded (weight, bias) pair for the region's only convolution."""
    FOLD_SEQ = "fold_conv_bn_seq"
    """One folded (weight, bias) pair per convolution, in call order."""
    NONE = "none"
    """No inputs: the weights are constants of the region."""


@dataclass(frozen=True)
class Where:
    """Module-path globs; a path must match one of ``include`` (any path, if there is none) and none of ``exclude``."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def admits(self, path: str) -> bool:
        """Tell whether a module path is in scope; the mark of a second call (``head@1``) may be left out of a glob."""
        forms = {path, re.sub(r"@\d+", "", path)}
        hit = not self.include or any(fnmatch.fnmatchcase(form, glob) for form in forms for glob in self.include)
        return hit and not any(fnmatch.fnmatchcase(form, glob) for form in forms for glob in self.exclude)

    def __str__(self) -> str:
        return ",".join((*self.include, *(f"!{glob}" for glob in self.exclude)))


@dataclass(frozen=True)
class Selector:
    """One parsed ``--plugin``. ``names``: the class, suffix or dotted path; both ends of a span; all nodes of a list."""

    text: str
    namespace: str
    name: str
    kind: Kind
    names: tuple[str, ...]
    around: bool = False
    where: Where = Where()
    lift: Lift = Lift.AUTO
    join: bool = True

    @property
    def placeholder(self) -> str:
        """``<namespace>::<Name>``."""
        return f"{self.namespace}::{self.name}"

    @property
    def ops_name(self) -> str:
        """What stands on the right of ``=``, without ``:around`` and modifiers."""
        if self.kind is Kind.SPAN:
            return "...".join(self.names)
        prefix = f"{self.kind.value}:" if self.kind in {Kind.MODULE, Kind.CALL} else ""
        return prefix + ",".join(self.names)

    def __str__(self) -> str:
        """The canonical text: parsing it gives the same selector."""
        where = f"@where={self.where}" if self.where != Where() else ""
        lift = f"@lift={self.lift.value}" if self.lift is not Lift.AUTO else ""
        around = _AROUND if self.around else ""
        return f"{self.placeholder}={self.ops_name}{around}{where}{lift}{'' if self.join else '@nojoin'}"


def selector_error(text: str, start: int, end: int, problem: str, hint: str) -> UserError:
    """Give the error for one place of a selector: the text, a marker below it, and the problem."""
    marker = " " * start + "^" * max(1, end - start)
    msg = f"--plugin, column {start + 1}: {problem}\n  {text}\n  {marker}"
    return UserError(msg, code="bad_selector", hint=hint)


def parse_selectors(texts: Sequence[str]) -> list[Selector]:
    """Parse all ``--plugin`` of a command line.

    Raises:
        UserError: ``bad_selector``; two selectors name one plugin (``duplicate_plugin``), in whatever namespaces: the
            name is also that of its files.
    """
    found: dict[str, Selector] = {}
    for text in texts:
        selector = parse_selector(text)
        other = found.setdefault(selector.name, selector)
        if other is not selector:
            msg = f"two selectors name the plugin {selector.name}: {other.text!r} and {selector.text!r}"
            hint = "Join their scopes (@where=a,b), or give each a name of its own."
            raise UserError(msg, code="duplicate_plugin", hint=hint)
    return list(found.values())


def parse_selector(text: str) -> Selector:
    """Parse one selector.

    Raises:
        UserError: ``bad_selector``, with the place in the text.
    """
    equals = text.find("=")
    separator = text.find("::")
    if separator < 0 or 0 <= equals < separator:
        end = equals if equals >= 0 else len(text)
        raise selector_error(text, 0, end, "no '::' between the namespace and the plugin's name", f"Form: {GRAMMAR}")
    if equals < 0:
        raise selector_error(text, len(text), len(text), "no '=' and no region after the name", f"Form: {GRAMMAR}")
    namespace, name = text[:separator], text[separator + 2 : equals]
    if namespace and not _NAMESPACE.fullmatch(namespace):
        hint = "Letters, digits and _, dots between parts; nothing for the empty namespace."
        raise selector_error(text, 0, separator, f"{namespace!r} is no namespace", hint)
    if not _NAME.fullmatch(name):
        problem = f"{name!r} is no plugin name" if name else "the plugin has no name"
        raise selector_error(text, separator + 2, equals, problem, "A letter or _, then letters, digits and _.")
    marks = [mark.start() for mark in _MODIFIER.finditer(text, equals + 1)]
    end = marks[0] if marks else len(text)
    kind, names, around = _region(text, equals + 1, end)
    where, lift, join = _modifiers(text, marks, kind, around=around)
    return Selector(text, namespace, name, kind, names, around, where, lift, join)


def _region(text: str, start: int, end: int) -> tuple[Kind, tuple[str, ...], bool]:
    body = text[start:end]
    around = body.endswith(_AROUND)
    if around:
        end -= len(_AROUND)
        body = text[start:end]
    if not body:
        raise selector_error(text, start, end, "no region after '='", f"Form: {GRAMMAR}")
    for kind in (Kind.CALL, Kind.MODULE):
        prefix = f"{kind.value}:"
        if body.startswith(prefix):
            return kind, (_one(text, start + len(prefix), end, _PATH, f"a dotted path after {prefix!r}"),), around
    if "..." in body or "," in body:
        kind, separator = (Kind.SPAN, "...") if "..." in body else (Kind.NODES, ",")
        if around:
            hint = "Leave it out: the nodes named are the region."
            raise selector_error(text, end, end + len(_AROUND), "':around' is for modules and calls", hint)
        names = _several(text, start, end, separator)
        if kind is Kind.SPAN and len(names) != 2:
            raise selector_error(text, start, end, f"a span has two ends, this has {len(names)}", "Form: A...B")
        return kind, names, around
    if ":" in body:
        colon = start + body.index(":")
        near = difflib.get_close_matches(text[colon:end], [_AROUND], 1, 0.5)
        word = body.split(":")[0]
        first = difflib.get_close_matches(word, ["call", "mod"], 1, 0.6)
        hint = f"Did you mean {near[0]!r}?" if near else "Known are call:<path>, mod:<suffix> and a trailing :around."
        hint = f"Did you mean '{first[0]}:'?" if first else hint
        raise selector_error(text, colon, end, f"{text[colon:end]!r} is not known here", hint)
    return Kind.CLASS, (_one(text, start, end, _CLASS, "a class name"),), around


def _one(text: str, start: int, end: int, form: re.Pattern[str], what: str) -> str:
    word = text[start:end]
    if not form.fullmatch(word):
        raise selector_error(text, start, end, f"{word!r} is not {what}", "Letters, digits, _ and dots between parts.")
    return word


def _several(text: str, start: int, end: int, separator: str) -> tuple[str, ...]:
    names: list[str] = []
    place = start
    for word in text[start:end].split(separator):
        if not _NAME.fullmatch(word):
            problem = f"{word!r} is not the name of a node" if word else "a node name is missing"
            raise selector_error(text, place, place + len(word), problem, "Names stand in fx_nodes.json.")
        if word in names:
            raise selector_error(text, place, place + len(word), f"{word!r} is named twice", "Name each node once.")
        names.append(word)
        place += len(word) + len(separator)
    return tuple(names)


def _modifiers(text: str, marks: Sequence[int], kind: Kind, *, around: bool) -> tuple[Where, Lift, bool]:
    where, lift, join = Where(), Lift.AUTO, True
    seen: set[str] = set()
    for mark, end in zip(marks, (*marks, len(text))[1:], strict=True):
        word, equals, value = text[mark + 1 : end].partition("=")
        if word in seen:
            raise selector_error(text, mark, end, f"@{word} is given twice", "Give each modifier once.")
        seen.add(word)
        begin = mark + 1 + len(word) + len(equals)
        if word == "where":
            if kind not in {Kind.CLASS, Kind.MODULE, Kind.CALL}:
                raise selector_error(text, mark, end, "@where scopes modules, not nodes", "Name only the nodes wanted.")
            where = _where(text, begin, end)
        elif word == "lift":
            known = [each.value for each in Lift if each is not Lift.AUTO]
            if value not in known:
                raise selector_error(text, begin, end, f"{value!r} is no way to lift", f"One of {', '.join(known)}.")
            lift = Lift(value)
        elif word == "nojoin":
            if equals:
                raise selector_error(text, mark, end, "@nojoin takes no value", "Write @nojoin.")
            if not around:
                raise selector_error(text, mark, end, "@nojoin without ':around' says nothing", "Add :around.")
            join = False
        else:
            near = difflib.get_close_matches(word, ["where", "lift", "nojoin"], 1)
            hint = f"Did you mean @{near[0]}?" if near else "Known are @where=, @lift= and @nojoin."
            raise selector_error(text, mark, end, f"the modifier @{word} is not known", hint)
    return where, lift, join


def _where(text: str, start: int, end: int) -> Where:
    include: list[str] = []
    exclude: list[str] = []
    place = start
    for glob in text[start:end].split(","):
        bare = glob.removeprefix("!")
        if not re.fullmatch(r"[\w.*?\[\]!@-]+", bare):
            problem = f"{glob!r} is no module-path glob" if glob else "a glob is missing"
            hint = "Letters, digits, _ . * ? and [...]; a comma between globs, ! before one that excludes."
            raise selector_error(text, place, place + len(glob), problem, hint)
        (exclude if glob.startswith("!") else include).append(bare)
        place += len(glob) + 1
    return Where(tuple(include), tuple(exclude))
