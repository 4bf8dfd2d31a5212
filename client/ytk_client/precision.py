"""Whether an engine can compute in a precision, said before anything is sent."""

from __future__ import annotations

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.targets import load_profile

DEFAULT = "fp32"


def check_precision(precision: str, arch: ArchSpec) -> None:
    """Refuse a precision that no engine of an arch spec's kind has.

    Raises:
        UserError: ``precision``, with those that it has.
    """
    profile = load_profile(arch)
    if precision not in profile.precisions:
        able = ", ".join(profile.precisions)
        msg = f"-p {precision}: engines of {arch.engine_name} ({profile.name}) compute in {able}"
        raise UserError(
            msg, code="precision", hint=f"Use -p with one of: {able}. A precision is never changed silently."
        )


def precision_requirements(precision: str) -> tuple[str, ...]:
    """Give what a worker has to advertise: every device has the default, others depend on it (bfloat16 of a CPU, say)."""
    return () if precision == DEFAULT else (f"precision=={precision}",)
