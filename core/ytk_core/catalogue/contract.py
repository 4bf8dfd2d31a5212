"""What one entry of the catalogue says about its plugin, and how a kernel bundle is made from it.

The kernel text of an entry is fixed. What depends on the place of use are output extents that no input has (the grid of
a dense output, a declared maximum): the node carries them as attributes, and the bundle is written with these values
fixed. ``attr.<name>[<k>]`` in a shape stands for such a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import (
    SCHEMA_VERSION,
    AttributeDecl,
    AttributeType,
    Constraints,
    DeploymentTarget,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    TensorType,
    Tolerance,
    Variant,
)

NAMESPACE = "ytk_catalogue"
"""ONNX domain and plugin namespace of every shipped plugin: no name that a model or a user derives can meet one."""
KERNEL_VERSION = "1"
"""Rises with the text of the kernels; it is part of every bundle, so built plugins are not mixed up."""

_ATTRIBUTE_IN_SHAPE = re.compile(r"attr\.(\w+)\[(\d+)\]")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a plugin. ``dtype`` None: the float type of the engine, fp32 or (on a GPU) fp16.

    ``shape`` is of outputs: one expression per axis over the inputs' dims and the node's attributes.
    """

    name: str
    rank: int
    dtype: DType | None = None
    shape: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One shipped plugin.

    ``name`` is the plugin's name, ``operator`` that of the torch operator in the namespace ``ytk_catalogue`` whose
    tensors are the inputs and whose other arguments are the attributes, in order. ``headers`` are put before the source
    of each device kind; ``tolerance`` is relative to the largest value.
    """

    name: str
    operator: str
    summary: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ints: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    workspace: bool = True
    tolerance: Tolerance

    @property
    def shaping(self) -> tuple[str, ...]:
        """The attributes that decide an output's extents."""
        texts = [text for output in self.outputs for text in output.shape]
        return tuple(dict.fromkeys(match[1] for text in texts for match in _ATTRIBUTE_IN_SHAPE.finditer(text)))

    def source_files(self, target: DeploymentTarget) -> tuple[tuple[str, ...], str]:
        """Give the names of the header files and of the source file of a device kind."""
        gpu = target is DeploymentTarget.TENSORRT
        shared = ("common.h", "cuda_common.h") if gpu else ("common.h",)
        own = tuple(name for name in self.headers if name.endswith("_cuda.h") is gpu or _is_shared(name))
        return (*shared, *own), f"{self.operator}.{'cu' if gpu else 'cpp'}"

    def meta(
        self, target: DeploymentTarget, attributes: Mapping[str, Any], *, name: str | None = None, sites: int = 1
    ) -> PluginMeta:
        """Give the plugin's contract at a place of use.

        Args:
            target: CPU or TensorRT.
            attributes: Of the node; those in :attr:`shaping` become part of the contract.
            name: Of the plugin, if not the entry's own: places of use with other output extents need another.
            sites: Number of nodes.

        Raises:
            UserError: ``bad_catalogue_node``: an attribute that decides an output's extent is missing or no integers.
        """
        fixed = {each: _ints(attributes, each, self.name) for each in self.shaping}
        return PluginMeta(
            schema_version=SCHEMA_VERSION,
            plugin_namespace=NAMESPACE,
            plugin_name=name or self.name,
            plugin_version="1",
            deployment_target=target,
            inputs=[InputDecl(name=each.name, rank=each.rank, dims=[None] * each.rank) for each in self.inputs],
            outputs=[
                OutputDecl(
                    name=each.name, rank=each.rank, shape=[_filled(text, fixed, self.name) for text in each.shape]
                )
                for each in self.outputs
            ],
            variants=self._variants(target),
            launcher=Launcher(workspace="ytk_workspace" if self.workspace else None),
            tolerance=self.tolerance,
            generator=Generator(name="ytk-catalogue", version=KERNEL_VERSION, strategy="shipped"),
            region_digest=digest_bytes(f"{NAMESPACE}::{self.operator} {KERNEL_VERSION}".encode()),
            attributes=[
                *(AttributeDecl(name=each, type=AttributeType.INTS, value=fixed.get(each)) for each in self.ints),
                *(AttributeDecl(name=each, type=AttributeType.FLOATS) for each in self.floats),
            ],
            constraints=Constraints(alignment_bytes=8),
            sites=sites,
        )

    def _variants(self, target: DeploymentTarget) -> list[Variant]:
        # CPU engines hand custom operations fp32; a GPU engine in fp16 would have to convert at every border.
        floats = (
            {"f32": DType.FLOAT32, "f16": DType.FLOAT16}
            if target is DeploymentTarget.TENSORRT
            else {"f32": DType.FLOAT32}
        )
        return [
            Variant(
                id=label,
                inputs=[TensorType(dtype=each.dtype or dtype) for each in self.inputs],
                outputs=[TensorType(dtype=each.dtype or dtype) for each in self.outputs],
            )
            for label, dtype in floats.items()
        ]

    def bundle(
        self, target: DeploymentTarget, attributes: Mapping[str, Any], *, name: str | None = None, sites: int = 1
    ) -> KernelBundle:
        """Give the kernel bundle at a place of use; arguments and errors as :meth:`meta`."""
        headers, source = self.source_files(target)
        first = '#include "ytk_cuda.h"\n' if target is DeploymentTarget.TENSORRT else ""
        return KernelBundle(
            header=first + "\n".join(map(kernel_text, headers)),
            source=kernel_text(source),
            meta=self.meta(target, attributes, name=name, sites=sites),
        )


def kernel_text(name: str) -> str:
    """Give a file of ``kernels/``."""
    return (resources.files(__package__) / "kernels" / name).read_text(encoding="utf-8")


def _is_shared(header: str) -> bool:
    return not header.endswith(("_cuda.h", "_cpu.h"))


def _ints(attributes: Mapping[str, Any], name: str, entry: str) -> list[int | float]:
    value = attributes.get(name)
    values = [value] if isinstance(value, int) else value
    if not isinstance(values, Sequence) or not all(isinstance(each, int) for each in values):
        msg = f"a node of the shipped plugin {entry} has {name} = {value!r}, where integers belong"
        raise UserError(msg, code="bad_catalogue_node", hint="Make the model again with `ytk embedded prepare`.")
    return [int(each) for each in values]


def _filled(text: str, fixed: Mapping[str, Sequence[int | float]], entry: str) -> str:
    def value(match: re.Match[str]) -> str:
        values = fixed[match[1]]
        if int(match[2]) >= len(values):
            msg = f"a node of the shipped plugin {entry} has {len(values)} numbers in {match[1]}, which needs more"
            raise UserError(msg, code="bad_catalogue_node", hint="Make the model again with `ytk embedded prepare`.")
        return str(values[int(match[2])])

    return _ATTRIBUTE_IN_SHAPE.sub(value, text)
