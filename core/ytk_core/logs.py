"""Logs of the daemons: JSON lines on standard error, event name and keys, ids bound through contextvars."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_logs(level: str = "info", **bound: Any) -> None:
    """Send every log line of this process to standard error as one JSON object.

    Lines of libraries that use :mod:`logging` come in the same form. Call once, in ``main``.

    Args:
        level: Lowest level shown: ``debug``, ``info``, ``warning``, ``error``.
        bound: Keys on every line, e.g. ``role="kronos"``.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.EventRenamer("event"), structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
    structlog.contextvars.bind_contextvars(**bound)
