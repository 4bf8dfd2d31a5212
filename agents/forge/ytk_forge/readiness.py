"""What a toolchain lacks on this machine, each with what to install or set."""

from __future__ import annotations

from ytk_core.errors import NotAvailableError
from ytk_forge.device.compiler import find_device_compiler
from ytk_forge.toolchain import Toolchain, host_problems
from ytk_forge.trt_headers import find_headers


def problems(toolchain: Toolchain) -> list[str]:
    """List what is missing to build with a toolchain; empty: it is ready."""
    found = host_problems(toolchain)
    for find in (find_device_compiler, find_headers):
        try:
            find(toolchain)
        except NotAvailableError as err:
            found.append(f"{err.message}. {err.hint}")
    return found
