"""What stands at a kernel's border, and what an emitter gives back: the same for every device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ytk_core.dtypes import DType


@dataclass(frozen=True)
class KernelTensor:
    """One tensor at the kernel's border.

    Attributes:
        name: A C identifier.
        dtype: Element type.
        shape: Captured extents.
        dynamic_axes: Those that may differ at run time.
        extents: One expression per dim over ``in<i>.d<j>``; a dim that says itself defines an extent.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    dynamic_axes: tuple[int, ...] = ()
    extents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Border:
    """What the launcher takes and gives.

    Attributes:
        inputs: In the order of the placeholder node.
        outputs: Likewise.
        placeholder_of: For each input, the index of the program's placeholder that it feeds.
        baked: Placeholder index to the tensor that is a constant of the kernel.
        ranges: Input and axis of each dim that defines a dynamic extent to its limits (None: no upper one).
    """

    inputs: tuple[KernelTensor, ...]
    outputs: tuple[KernelTensor, ...]
    placeholder_of: tuple[int, ...]
    baked: dict[int, torch.Tensor] = field(default_factory=dict)
    ranges: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class EmittedKernel:
    """Source text and what the contract must say about it.

    ``workspace_function``: whether the source has ``ytk_workspace``, whose answer then counts; the figures are lower bounds.
    ``form``: word for what was done beyond loops ("": nothing); ``launches`` and ``traffic_bytes``: kernels of a GPU that one call
    starts, and what they read and write of memory at the captured shape; ``paper_us``: their time on paper; None: not said.
    """

    source: str
    fixed_workspace_bytes: int
    per_thread_workspace_bytes: int
    nests: int
    longest_reduction: int
    workspace_function: bool = False
    form: str = ""
    launches: int | None = None
    traffic_bytes: int | None = None
    paper_us: float | None = None
