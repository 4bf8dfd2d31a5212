from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import logging, structlog
from ytk_core.logs import configure_logs
configure_logs("info", role="kronos")
log = structlog.get_logger("x")
log.debug("hidden")
with structlog.contextvars.bound_contextvars(job_id="j1"):
    log.info("job_assigned", kind="engine.build")
logging.getLogger("grpc").warning("a library says %s", "this")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
print("data")
"""


def test_json_lines_on_stderr_and_nothing_on_stdout() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "data\n"
    first, second, third = (json.loads(line) for line in done.stderr.splitlines())
    assert (first["event"], first["kind"], first["job_id"], first["role"], first["level"]) == (
        "job_assigned",
        "engine.build",
        "j1",
        "kronos",
        "info",
    )
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("a library says this", "warning")
    assert "job_id" not in second
    assert "ZeroDivisionError" in third["exception"]
