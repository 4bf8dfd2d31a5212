"""What every device compiler gives, and the errors that they share."""

from __future__ import annotations

import msgspec

from ytk_core.errors import CandidateError

COMPILE_LIMIT_S = 300.0


class DeviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled cubin and what the compiler said."""

    cubin: bytes
    log: str


def too_slow() -> CandidateError:
    """Give the error of a compilation that was ended."""
    msg = f"compiling the device code took more than {COMPILE_LIMIT_S:g} s and was ended"
    return CandidateError(
        msg, code="compile_timeout", hint="Generate a smaller kernel (less unrolling, fewer templates)."
    )


def compile_error(log: str, otherwise: str = "no message") -> CandidateError:
    """Give the error of a text that does not compile: its first message."""
    lines = [line for line in log.splitlines() if "error" in line] or [otherwise]
    msg = f"the device code does not compile: {lines[0].strip()}"
    hint = "The build log has all messages; lines count from the start of HEADER or SOURCE."
    return CandidateError(msg, code="device_compile_error", hint=hint)
