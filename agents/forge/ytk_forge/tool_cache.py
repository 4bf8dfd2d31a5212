"""Small programs of ours that a toolchain compiles again and again: kept beside the finished builds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ytk_core.errors import YtkError
from ytk_core.files import atomic_write
from ytk_forge.cache import cache_key

DIRECTORY = "tools"
"""Below a build cache's directory; like it, it is Forge's own: what is in it runs in the sandbox, but unchecked."""


def kept(cache_dir: Path | None, parts: Mapping[str, object], make: Callable[[], bytes]) -> bytes:
    """Give what ``make`` gives, kept under everything that decides it.

    Args:
        cache_dir: A build cache's directory; None keeps nothing.
        parts: What the result depends on.
        make: Called where nothing is kept yet.
    """
    if cache_dir is None:
        return make()
    path = cache_dir / DIRECTORY / cache_key(parts)
    with contextlib.suppress(OSError):
        if content := path.read_bytes():
            return content
    content = make()
    # Without space for it the build still works: it compiles the program each time.
    with contextlib.suppress(OSError, YtkError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(content)
    return content
