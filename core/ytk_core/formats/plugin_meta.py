"""plugin_meta: the contract of one plugin, written as YAML into a kernel bundle.

Whoever generates a kernel writes it, Forge renders the plugin table from it, every pre-flight compares against it.
Checks that need more than one field are in :mod:`ytk_core.formats.plugin_meta_checks`.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ytk_core.dtypes import DType

SCHEMA_VERSION = 1


class DeploymentTarget(enum.StrEnum):
    """What the kernel is for: it decides language and packaging."""

    CPU = "cpu"
    TENSORRT = "tensorrt"
    TORCH = "torch"


class Format(enum.StrEnum):
    """Memory layout of one tensor; the order is that of ``enum ytk_format``."""

    LINEAR = "linear"
    HWC = "kHWC"
    HWC8 = "kHWC8"
    HWC16 = "kHWC16"
    CHW4 = "kCHW4"
    CHW16 = "kCHW16"
    CHW32 = "kCHW32"


FORMAT_NUMBER: dict[Format, int] = {fmt: number for number, fmt in enumerate(Format)}


class AttributeType(enum.StrEnum):
    """Type of a node attribute; scalars are lists of one."""

    INTS = "ints"
    FLOATS = "floats"
    STRING = "string"


class Role(enum.StrEnum):
    """What feeds an input of the region."""

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Frozen, and strict about unknown keys: a typo in a contract is an error."""


class InputDecl(_Struct, frozen=True, kw_only=True):
    """One input. ``dims``: the extents the kernel was made for; None where it takes any."""

    name: str
    rank: int
    dims: list[int | None]
    role: Role = Role.ACTIVATION


class OutputDecl(_Struct, frozen=True, kw_only=True):
    """One output. ``shape``: one expression per dim over ``in<i>.d<j>`` and integer literals.

    Operators: ``+ - * // ceildiv min max`` and comparison ``== <``: the operations of TensorRT's
    ``DimensionOperation``. Grammar and evaluator: :mod:`ytk_core.formats.shape_expr`.
    """

    name: str
    rank: int
    shape: list[str]


class TensorType(_Struct, frozen=True, kw_only=True):
    """Dtype and layout of one tensor in a variant."""

    dtype: DType
    format: Format = Format.LINEAR


class Variant(_Struct, frozen=True, kw_only=True):
    """One acceptable combination of the dtype and layout of every tensor together.

    Independent lists per tensor cannot express what an engine asks ("all fp16 kHWC8, or all fp32 linear").
    """

    id: str
    inputs: list[TensorType]
    outputs: list[TensorType]


class AttributeDecl(_Struct, frozen=True, kw_only=True):
    """A node attribute the kernel reads; ``value`` fixes it (baked into the kernel), None leaves it to the node."""

    name: str
    type: AttributeType
    required: bool = True
    value: list[int | float] | str | None = None


class ConstantAxis(_Struct, frozen=True, kw_only=True):
    """An axis whose extent is the same at every site, so the kernel may specialise on it."""

    input: int
    axis: int
    extent: int


class Extent(_Struct, frozen=True, kw_only=True):
    """The range of a dynamic axis that the kernel was tested for (inclusive)."""

    input: int
    axis: int
    min: int
    opt: int
    max: int


class Constraints(_Struct, frozen=True, kw_only=True):
    """What the caller has to guarantee. ``arch``: arch spec fields, e.g. ``device: sm87``; empty: any."""

    arch: dict[str, str] = {}
    alignment_bytes: int = 64
    divisible: list[tuple[int, int, int]] = []
    """(input, axis, divisor)"""


class Tolerance(_Struct, frozen=True, kw_only=True):
    """Largest accepted difference from the reference, and where the figure comes from."""

    rtol: float
    atol: float
    source: str


class Launcher(_Struct, frozen=True, kw_only=True):
    """C symbols in the bundle's source; ``workspace`` is None where none is needed."""

    launch: str = "ytk_launch"
    workspace: str | None = None
    fixed_workspace_bytes: int = 0


SKELETON, BY_HAND = "skeleton", "hand"
"""``Generator.strategy`` of a kernel that somebody has yet to write, and of one that somebody wrote."""


class Generator(_Struct, frozen=True, kw_only=True):
    """Who made the kernel, for reproduction and for mismatch checks."""

    name: str
    version: str
    torch: str | None = None
    strategy: str
    parameters: dict[str, Any] = {}
    seed: int = 0


class PluginMeta(_Struct, frozen=True, kw_only=True):
    """The whole contract of one plugin."""

    schema_version: int
    plugin_namespace: str
    plugin_name: str
    plugin_version: str
    deployment_target: DeploymentTarget
    inputs: list[InputDecl]
    outputs: list[OutputDecl]
    variants: list[Variant]
    launcher: Launcher
    tolerance: Tolerance
    generator: Generator
    region_digest: str
    attributes: list[AttributeDecl] = []
    constant_axes: list[ConstantAxis] = []
    extents: list[Extent] = []
    constraints: Constraints = Constraints()
    compile_flags: list[str] = []
    """Extra optimisation flags the candidate was measured with; only those on Forge's allow-list are accepted."""
    sites: int = 1
