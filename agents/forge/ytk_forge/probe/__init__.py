"""The audit's look into a built library: loaded in a sandboxed process, compared with its contract."""
