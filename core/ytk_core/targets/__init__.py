"""What each engine version accepts, as data (``target_profiles.json``) and as a check of one node."""

from __future__ import annotations

from ytk_core.targets.nodes import NodeFacts
from ytk_core.targets.profiles import DEFAULT_PROFILE, TargetProfile, Verdict, load_profile, profile_names

__all__ = ["DEFAULT_PROFILE", "NodeFacts", "TargetProfile", "Verdict", "load_profile", "profile_names"]
