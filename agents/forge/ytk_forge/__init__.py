"""Forge: kernel bundle to audited plugin library."""
