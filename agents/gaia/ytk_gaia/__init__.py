"""Gaia: generates kernels and chooses them by measurement."""

GENERATOR_VERSION = "5"
"""Goes into each contract; raised when the same region gives another kernel text."""
