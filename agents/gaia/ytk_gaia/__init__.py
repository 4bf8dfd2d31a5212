"""Gaia: generates kernels and chooses them by measurement."""

GENERATOR_VERSION = "6"
"""Goes into each contract; raised when the same region gives another kernel text."""
