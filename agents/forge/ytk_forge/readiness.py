"""What a toolchain lacks on this machine, each with what to install or set."""

from __future__ import annotations

import enum
import functools

from ytk_core.errors import NotAvailableError
from ytk_forge.device.compiler import find_device_compiler
from ytk_forge.toolchain import Toolchain, host_problems
from ytk_forge.trt_headers import find_headers


def problems(toolchain: Toolchain, *, declared: bool = False) -> list[str]:
    """List what is missing to build with a toolchain; empty: it is ready.

    ``declared``: for builds that ask for a TensorRT interface declared by hand where there are no headers.
    """
    found = host_problems(toolchain)
    for find in (find_device_compiler, functools.partial(find_headers, declared=declared)):
        try:
            find(toolchain)
        except NotAvailableError as err:
            found.append(f"{err.message}. {err.hint}")
    return found


class State(enum.StrEnum):
    """What a toolchain can do on this machine."""

    READY = "ready"
    MARKED = "marked"
    """Only builds that ask for a declared interface; what they give is marked as not target-verified."""
    NOT_READY = "not ready"


def state(toolchain: Toolchain) -> State:
    """Say what a toolchain can do on this machine."""
    if not problems(toolchain):
        # One whose file says abi = "declared" marks every build.
        headers = find_headers(toolchain)
        return State.MARKED if headers is not None and headers.declared else State.READY
    return State.NOT_READY if problems(toolchain, declared=True) else State.MARKED
