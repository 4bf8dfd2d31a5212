"""The order of a body's statements: what a loaded value is needed for follows its load, so that few values live at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LET = re.compile(r"(?:\[\[maybe_unused\]\] )?const auto (t\d+) = ")
_VALUE = re.compile(r"\bt\d+\b")
_LOAD = re.compile(r"const auto t\d+ = ytk::load\((t\d+)\[(?:\((-\d+)L\)|(\d+)L)\]\);$")


def _offset(statement: str) -> tuple[str, int] | None:
    found = _LOAD.search(statement)
    return (found[1], int(found[2] or found[3])) if found else None


def by_load(body: Sequence[str]) -> list[str]:
    """Order statements by the offsets of the loads that they wait for; the result of each is what it was.

    Args:
        body: Statements that give names to values once each, and stores.
    """
    makes = [match[1] if (match := _LET.match(statement)) else None for statement in body]
    maker = {name: k for k, name in enumerate(makes) if name}
    needs = [{maker[n] for n in _VALUE.findall(s) if n in maker and maker[n] != k} for k, s in enumerate(body)]
    places = [_offset(statement) for statement in body]
    counts: dict[str, int] = {}
    for place in filter(None, places):
        counts[place[0]] = counts.get(place[0], 0) + 1
    busiest = max(counts, key=lambda name: counts[name], default="")
    keys = sorted((p[1], k) for k, p in enumerate(places) if p is not None and p[0] == busiest)
    order: list[int] = []
    done: set[int] = set()

    def emit(k: int) -> None:
        stack = [k]
        while stack:
            top = stack[-1]
            missing = [n for n in sorted(needs[top]) if n not in done]
            if missing:
                stack += missing
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                order.append(top)

    waiting = set(range(len(body))) - {k for _, k in keys}
    depends: list[set[int]] = []
    key_numbers = {k for _, k in keys}
    for k in range(len(body)):
        depends.append(({k} & key_numbers).union(*(depends[n] for n in needs[k] if n < k), set()))
    for _, key in keys:
        emit(key)
        # Whatever needs only loads that are there by now; what needs none is emitted when something asks for it.
        for k in sorted(waiting):
            if depends[k] and depends[k] <= done:
                emit(k)
                waiting.discard(k)
    for k in range(len(body)):
        emit(k)
    return [body[k] for k in order]
