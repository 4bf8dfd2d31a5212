"""Repros: one carved region or one module, small enough to paste into an issue, and replayed anywhere.

A repro holds JSON, a stored ``.npz`` and Python text; nothing in it is pickled. Its Python is run by ``replay`` only, in a sandbox.
"""
