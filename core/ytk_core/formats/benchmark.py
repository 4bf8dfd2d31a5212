"""Rows of time measurements, shared by references, engine bundles and verify reports. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np

from ytk_core.errors import ToolkitError


class BenchmarkRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times of one implementation, in milliseconds a call."""

    name: str
    iterations: int
    min_ms: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def from_samples(cls, name: str, samples_ms: Sequence[float]) -> Self:
        """Summarise single times (ms).

        Raises:
            ToolkitError: There are none.
        """
        if not len(samples_ms):
            msg = f"no time samples for {name!r}"
            raise ToolkitError(msg, hint="Measure at least one iteration.")
        times = np.asarray(samples_ms, dtype=np.float64)
        p50, p95, p99 = (float(value) for value in np.percentile(times, [50, 95, 99]))
        return cls(
            name=name,
            iterations=len(times),
            min_ms=float(times.min()),
            mean_ms=float(times.mean()),
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            max_ms=float(times.max()),
        )


PLUGIN_EXEC_TYPE = "plugin"
"""``LayerTime.exec_type`` of a layer that is a plugin; its ``type`` is then ``<namespace>::<Name>``."""


class LayerTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Mean time of one engine layer. ``onnx_nodes``: names of the ONNX nodes it stands for, where known."""

    name: str
    type: str
    ms: float
    onnx_nodes: tuple[str, ...] = ()
    exec_type: str = ""
