"""Names of the graph's inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BorderNames:
    """Names of the graph's inputs and outputs; ``kept`` are the positions of the outputs among what forward returns."""

    inputs: list[str]
    outputs: list[str]
    kept: list[int]

    def pick(self, flat: Sequence[Any]) -> list[Any]:
        """Give the tensors of the graph's outputs out of all flattened outputs."""
        return [flat[index] for index in self.kept]


def output_names(paths: Sequence[tuple[Any, ...]], taken: Iterable[str]) -> list[str]:
    """Name each flattened output after its place in what forward returned.

    One tensor is ``output``, an element of a tuple ``output_<i>``, an entry of a dict its key, deeper levels are joined
    with ``_``. Names are unique, differ from ``taken`` and hold letters, digits, ``_`` only.

    Args:
        paths: Keys and indices of each output, from the root.
        taken: Names that inputs have.
    """
    used = set(taken)
    names = []
    for path in paths:
        words = [re.sub(r"\W+", "_", str(step)).strip("_") or "output" for step in path]
        if not path or isinstance(path[0], int):
            words.insert(0, "output")
        base = "_".join(words)
        name, serial = base, 0
        while name in used:
            serial += 1
            name = f"{base}_out" if serial == 1 else f"{base}_out{serial}"
        used.add(name)
        names.append(name)
    return names
