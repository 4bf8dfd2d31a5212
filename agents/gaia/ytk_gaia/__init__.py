"""Gaia: generates kernels and chooses them by measurement."""
