"""The generator: torch lives here and nowhere else in Gaia; it runs as a sandboxed task."""
