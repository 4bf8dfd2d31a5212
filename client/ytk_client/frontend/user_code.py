"""Find the user's own line and module in an exception that torch raised."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class UserFrame:
    """One line of the user's code, and the module whose forward it is in (None outside of any)."""

    path: str
    line: int
    function: str
    text: str
    module_path: str | None = None
    module_class: str | None = None

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        return f"{self.path}:{self.line}, in {self.function}{text}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Give the exception and those it was raised from, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def user_frame(error: BaseException, model_path: Path, root: Any = None) -> UserFrame | None:
    """Give the innermost frame of the user's code, or None where no such frame is left.

    Args:
        error: What was raised; its causes are searched too.
        model_path: The model file; code in its folder and below that is not an installed package is the user's.
        root: The top nn.Module, to name the module that was running.
    """
    best: tuple[FrameType, int] | None = None
    modules: list[Any] = []
    for link in chain(error):
        entered: list[Any] = []
        for frame, line in traceback.walk_tb(link.__traceback__):
            owner = frame.f_locals.get("self")
            if hasattr(owner, "named_modules") and frame.f_code.co_name in {"_call_impl", "forward", "__call__"}:
                entered.append(owner)
            if is_user_file(frame.f_code.co_filename, model_path):
                best, modules = (frame, line), list(entered)
    if best is None:
        return None
    frame, line = best
    name, kind = _owner(root, modules)
    filename = frame.f_code.co_filename
    return UserFrame(filename, line, frame.f_code.co_name, linecache.getline(filename, line).strip(), name, kind)


def is_user_file(filename: str, model_path: Path) -> bool:
    """Tell whether a file is the model or lies beside or below it, installed packages excluded."""
    path = Path(filename)
    installed = [Path(sysconfig.get_path(key)) for key in ("purelib", "platlib", "stdlib")]
    if any(folder in path.parents for folder in installed):
        return False
    return path == model_path or model_path.parent in path.parents


def describe_error(error: BaseException, model_path: Path) -> str:
    """Give ``file:line, in function: source: Type: message`` of an exception, on one line."""
    frame = user_frame(error, model_path)
    text = first_line(str(error))
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{frame}: {what}" if frame else what


def first_line(text: str) -> str:
    """Give the first non-empty line, stripped; "" if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _owner(root: Any, modules: list[Any]) -> tuple[str | None, str | None]:
    """Name the innermost entered module that belongs to the model."""
    if root is None:
        return None, None
    names = {id(module): name for name, module in root.named_modules()}
    for module in reversed(modules):
        if id(module) in names:
            return names[id(module)], f"{type(module).__module__}.{type(module).__qualname__}"
    return None, None
