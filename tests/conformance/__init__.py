"""What becomes of every operator that torch itself has samples for: ``make conformance``.

The runner is a tool of this repository, not of the wheel: it needs torch's own test helpers and ONNX Runtime as a judge,
and its figures belong beside the tests that keep them.
"""
