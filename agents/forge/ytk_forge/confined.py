"""Where :mod:`ytk_core.confined` was before others needed it."""

from ytk_core.confined import MEMORY_BYTES, Finished, run_confined

__all__ = ["MEMORY_BYTES", "Finished", "run_confined"]
