"""The evaluator: builds, runs and judges candidates without torch."""
