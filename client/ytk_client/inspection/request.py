"""What a user asks of an inspection besides the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ytk_core.archspec import ArchSpec
from ytk_core.sandbox import SandboxMode
from ytk_core.targets import DEFAULT_PROFILE, TargetProfile, load_profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The target to judge a file for.

    ``arch``: only where the user named one; built files are compared with it. ``second_opinion``: of a model, ask a real parser too.
    """

    profile: TargetProfile
    arch: ArchSpec | None = None
    precision: str = "fp32"
    plugins: Sequence[Path] = ()
    second_opinion: bool = False
    sandbox: SandboxMode = "required"

    @classmethod
    def of(
        cls,
        target: str | None = None,
        *,
        precision: str = "fp32",
        plugins: Sequence[Path] = (),
        second_opinion: bool = False,
        sandbox: SandboxMode = "required",
    ) -> Request:
        """Make a request from an arch spec or a profile's name; None takes the strictest TensorRT profile.

        Raises:
            UserError: No such profile, or a malformed arch spec.
        """
        profile = load_profile(DEFAULT_PROFILE if target is None else target)
        arch = ArchSpec.parse(target) if target is not None and "-" in target else None
        return cls(
            profile=profile,
            arch=arch,
            precision=precision,
            plugins=tuple(plugins),
            second_opinion=second_opinion,
            sandbox=sandbox,
        )
