"""Say what a file holds and what is wrong with it, from its content alone: nothing is executed, loaded or unpickled.

One module per kind of file; :func:`inspect_file` recognises the kind. Nothing here prints.
"""

from __future__ import annotations

from ytk_client.inspection.detect import inspect_file
from ytk_client.inspection.findings import SCHEMA_VERSION, Finding, Inspection, Severity, Table
from ytk_client.inspection.request import Request

__all__ = ["SCHEMA_VERSION", "Finding", "Inspection", "Request", "Severity", "Table", "inspect_file"]
