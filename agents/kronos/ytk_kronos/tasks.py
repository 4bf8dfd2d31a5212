"""The tasks of Kronos's jobs, by the names that handlers and tests use.

Which are trusted matters: ``build_engine``, ``profile_engine`` and ``run_samples`` load plugins and run sandboxed;
``open_bundle``, ``assemble_bundle``, ``reassemble_bundle`` and ``verify_outputs`` load none. A reference's expected
outputs are never within reach of a sandboxed one.
"""

from __future__ import annotations

from ytk_kronos.bundle_tasks import assemble_bundle, open_bundle, reassemble_bundle, verify_outputs
from ytk_kronos.engine_tasks import build_engine, profile_engine, run_samples

__all__ = [
    "assemble_bundle",
    "build_engine",
    "open_bundle",
    "profile_engine",
    "reassemble_bundle",
    "run_samples",
    "verify_outputs",
]
