"""What the daemon is told, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ytk_controller.jobs.model import Policy
from ytk_controller.store.base import TokenRecord


@dataclass(frozen=True, kw_only=True)
class Config:
    """Configuration of the daemon.

    ``database`` is empty (SQLite in the state directory), ``sqlite:////path`` or ``postgresql+psycopg://...``;
    ``artifacts`` is empty (a directory in the state directory), ``file:///path`` or ``s3://bucket/prefix``.
    """

    state_dir: Path
    listen: str
    tokens: tuple[TokenRecord, ...]
    database: str = ""
    artifacts: str = ""
    policy: Policy = field(default_factory=Policy)
    grace_s: float = 5.0
