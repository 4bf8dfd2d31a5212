"""The frontend: ``prepare`` turns a ``model.py`` into ONNX, weights, reference and regions to generate kernels for.

Importing this package loads no torch; :func:`prepare` does.
"""

from ytk_client.frontend.prepare import PrepareReport, PrepareRequest, dry_run, prepare

__all__ = ["PrepareReport", "PrepareRequest", "dry_run", "prepare"]
