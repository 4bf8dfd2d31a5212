"""What a lowered region costs on paper: bytes that its loops read and write, and how often their bodies run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.lowering import LoweredRegion


@dataclass(frozen=True)
class Cost:
    """Figures at the captured shape.

    Attributes:
        traffic_bytes: Of every loop nest, its output and each buffer that it reads, once.
        iterations: Of the innermost bodies, all nests together.
    """

    traffic_bytes: int
    iterations: int


def cost_of(region: LoweredRegion) -> Cost | None:
    """Give the cost of a region's loops; None where an extent has no known size."""
    graph = region.graph
    traffic = iterations = 0
    with inductor.V.set_graph_handler(graph):
        try:
            for operation in graph.operations:
                if not isinstance(operation, inductor.ir.ComputedBuffer):
                    continue
                sizes = [*operation.data.get_size(), *operation.data.get_reduction_size()]
                iterations += _product(graph, sizes)
                read = {dep.name for dep in operation.get_read_writes().reads}
                traffic += sum(_bytes(graph, name) for name in (operation.get_name(), *sorted(read)))
        except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError):
            return None
    return Cost(traffic, iterations)


def _captured(graph: Any, extent: Any) -> int:
    return int(graph.sizevars.optimization_hint(extent))


def _product(graph: Any, sizes: list[Any]) -> int:
    product = 1
    for size in sizes:
        product *= _captured(graph, size)
    return product


def _bytes(graph: Any, name: str) -> int:
    return _captured(graph, graph.get_numel(name)) * int(graph.get_dtype(name).itemsize)
