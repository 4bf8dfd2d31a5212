"""Write what kernel generation needs of each carved region: the program, its captured tensors and its source."""

from __future__ import annotations

import inspect
import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.carve import CarvedRegion, Port
from ytk_client.frontend.fx_nodes import source_line
from ytk_client.frontend.load_model import LoadedModel
from ytk_client.frontend.recording import SiteRecord
from ytk_client.frontend.tensors import to_storage
from ytk_core.formats.plugin_meta import ConstantAxis, Extent, Role
from ytk_core.formats.prepare_outputs import CallSite, Candidate, NodeInput, TensorShape
from ytk_core.formats.region import EXTRA_FILE, RegionSpec, RegionTensor, encode_region_spec, region_digest
from ytk_core.formats.weights_npz import write_weights

SUFFIXES = (".pt2", ".io.npz", ".inputs.pt", ".reference.py")
"""The files of one region in ``plugin_candidates``, after its name."""


def can_vary(
    body: torch.fx.GraphModule, shapes: Sequence[Sequence[tuple[int, ...]]], dtypes: Sequence[torch.dtype]
) -> bool:
    """Tell whether one program of a region serves several input shapes.

    Args:
        body: The region.
        shapes: Per site, per input; all of the same ranks.
        dtypes: Per input.
    """
    examples = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes[0], dtypes, strict=True)]
    varying = varying_axes(shapes)
    try:
        program = export_body(body, examples, varying)
    except Exception:  # noqa: BLE001 - whatever torch.export raises, the answer is no
        return False
    found = {node.name: node.meta["val"] for node in program.graph_module.graph.nodes if node.op == "placeholder"}
    values = [found[name] for name in torch_adapter.user_input_names(program)]
    return all(
        isinstance(value.shape[axis], torch.SymInt)
        for value, axes in zip(values, varying, strict=True)
        for axis in axes
    )


def varying_axes(shapes: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """Give, per tensor, the axes whose extents differ between sites."""
    return [
        tuple(axis for axis in range(len(each[0])) if len({shape[axis] for shape in each}) > 1)
        for each in zip(*shapes, strict=True)
    ]


def export_body(
    body: torch.fx.GraphModule,
    examples: Sequence[torch.Tensor],
    varying: Sequence[tuple[int, ...]],
    extents: Sequence[Extent] = (),
) -> torch.export.ExportedProgram:
    """Export a region on its own, with the given axes of its inputs dynamic, within ``extents`` where these say so.

    The example inputs, weights among them, travel with the saved program.
    """
    dims = None
    if any(varying):
        auto = torch.export.Dim.AUTO
        ranges = {(each.input, each.axis): auto(min=each.min, max=each.max) for each in extents}
        dims = tuple({axis: ranges.get((index, axis), auto) for axis in axes} for index, axes in enumerate(varying))
    with torch.no_grad(), torch_adapter.quiet():
        return torch.export.export(body, tuple(examples), dynamic_shapes=dims, strict=False)


def region_spec(region: CarvedRegion) -> RegionSpec:
    """Describe a region's border; the shapes are those of the first site."""
    inputs = _tensors([site.inputs for site in region.sites], "in")
    outputs = _tensors([site.outputs for site in region.sites], "out")
    return RegionSpec(
        namespace=region.namespace,
        name=region.name,
        version=region.version,
        inputs=inputs,
        outputs=outputs,
        aten_ops=region.aten_ops,
        digest=region_digest(ops=region.signature.split("; "), inputs=inputs, outputs=outputs),
        torch_version=str(torch.__version__),
        module_path=region.sites[0].module_path,
        sites=len(region.sites),
        extents=_extents(region),
    )


def _extents(region: CarvedRegion) -> tuple[Extent, ...]:
    """Give the range of each input axis that ``--dynamic`` made dynamic, over all sites."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for site in region.sites:
        for index, port in enumerate(site.inputs):
            for axis, low, opt, high in port.ranges:
                first = found.get((index, axis), (low, opt, high))
                found[index, axis] = (min(low, first[0]), first[1], max(high, first[2]))
    return tuple(
        Extent(input=index, axis=axis, min=low, opt=opt, max=high)
        for (index, axis), (low, opt, high) in sorted(found.items())
    )


def _tensors(ports: Sequence[Sequence[Port]], prefix: str) -> tuple[RegionTensor, ...]:
    dynamic = varying_axes([[port.shape for port in site] for site in ports])
    return tuple(
        RegionTensor(
            name=f"{prefix}{index}",
            dtype=port.dtype,
            # A data-dependent extent has no captured value; the region is marked as no plugin anyway.
            shape=tuple(max(extent, 0) for extent in port.shape),
            role=port.role,
            dynamic_axes=tuple(
                sorted(
                    {
                        *dynamic[index],
                        *(axis for axis, extent in enumerate(port.shape) if extent < 0),
                        *(entry[0] for entry in port.ranges),
                    }
                )
            ),
        )
        for index, port in enumerate(ports[0])
    )


def write_region(
    folder: Path, region: CarvedRegion, records: Mapping[str, SiteRecord], root: torch.nn.Module
) -> list[str]:
    """Write ``<Name>.pt2``, ``.io.npz``, ``.inputs.pt`` and ``.reference.py`` into a folder.

    Args:
        folder: Where to.
        region: A region that can be a plugin.
        records: By site: the tensors of the first sample.
        root: The model, to find the source of the owning module.

    Returns:
        What a generated kernel will not serve of the ranges that ``--dynamic`` gave.
    """
    first = records[region.sites[0].node]
    spec = region_spec(region)
    varying = [tensor.dynamic_axes for tensor in spec.inputs]
    program = export_body(region.body, first.inputs, varying, spec.extents)
    # It names graphs by memory address: equal regions would be different files, and no kernel would be found again.
    for node in program.graph.nodes:
        node.meta.pop("from_node", None)
    torch.export.save(program, folder / f"{region.name}.pt2", extra_files={EXTRA_FILE: encode_region_spec(spec)})
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for index, site in enumerate(region.sites):
        record = records[site.node]
        arrays |= {f"site{index}/in{i}": to_storage(tensor) for i, tensor in enumerate(record.inputs)}
        arrays |= {f"site{index}/out{i}": to_storage(tensor) for i, tensor in enumerate(record.outputs)}
    write_weights(folder / f"{region.name}.io.npz", arrays)
    buffer = io.BytesIO()
    torch.save([tensor.detach().clone() for tensor in first.inputs], buffer)
    (folder / f"{region.name}.inputs.pt").write_bytes(buffer.getvalue())
    (folder / f"{region.name}.reference.py").write_text(reference_source(region, root))
    return [
        f"{region.placeholder}: a generated kernel serves axis {each.axis} of its input {each.input} from an extent of {low} on, "
        f"not from {each.min}: torch takes a dynamic extent to be at least {low}"
        for each in spec.extents
        if (low := _least(program, each.input, each.axis)) > each.min
    ]


def _least(program: torch.export.ExportedProgram, index: int, axis: int) -> int:
    """Give the smallest extent that a program was captured for; kernel generation goes by it, and the launcher checks it."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    dim = values[torch_adapter.user_input_names(program)[index]].shape[axis]
    if not isinstance(dim, torch.SymInt):
        return int(dim)
    return torch_adapter.extent_range(dim, {})[0]


def reference_source(region: CarvedRegion, root: torch.nn.Module) -> str:
    """Give Python text with the region as a runnable function, and the source of the module it came from as comment."""
    site = region.sites[0]
    names = ", ".join(f"in{index}" for index in range(len(site.inputs)))
    code = region.body.code.replace("def forward(self, ", "def region(")
    owner = f"{site.module_path or '(top)'}: {site.module_class or 'unknown class'}"
    parts = [
        f'"""Region {region.placeholder}, carved from {owner}.\n\n`region({names})` computes what a kernel for it must compute.\n"""\n',
        "import operator\n\nimport torch\nfrom torch import device, inf, nan\n\n",
        textwrap.dedent(code).strip() + "\n",
    ]
    source = _module_source(root, site.module_path)
    if source:
        parts.append("\n\n# Source of the owning module:\n#\n" + textwrap.indent(source, "# ", lambda _line: True))
    return "".join(parts)


def _module_source(root: torch.nn.Module, path: str) -> str:
    """Give the source of a submodule's class, "" where there is none (built in C, typed at a prompt)."""
    # A second call of a module has a path like `head@1`.
    names = dict(root.named_modules())
    module = names.get(path.partition("@")[0])
    if module is None:
        return ""
    try:
        return inspect.getsource(type(module))
    except (OSError, TypeError):
        return ""


def candidate(
    region: CarvedRegion, model: LoadedModel, onnx_names: Mapping[str, str], gaia_input: str | None
) -> Candidate:
    """Give the diagnosis of a region for ``candidates.json``."""
    site = region.sites[0]
    spec = region_spec(region)
    return Candidate(
        proposed_op=region.placeholder,
        namespace=region.namespace,
        aten_op=region.aten_op,
        reason=region.refusal.reason,
        unsupported_reason=region.refusal.text,
        rule=region.refusal.rule or None,
        module_path=site.module_path,
        module_class=site.module_class,
        source_line=source_line(site.stack_trace, model.path),
        parameters=_parameters(region, model.module),
        node_inputs=tuple(
            NodeInput(name=tensor.name, dtype=tensor.dtype, rank=len(tensor.shape), role=tensor.role)
            for tensor in spec.inputs
        ),
        call_site_shapes=tuple(
            CallSite(
                node=onnx_names[each.node],
                module_path=each.module_path,
                inputs=tuple(_shape(port) for port in each.inputs),
                outputs=tuple(_shape(port) for port in each.outputs),
            )
            for each in region.sites
        ),
        constant_axes=tuple(
            ConstantAxis(input=index, axis=axis, extent=extent)
            for index, tensor in enumerate(spec.inputs)
            for axis, extent in enumerate(tensor.shape)
            if axis not in tensor.dynamic_axes
        ),
        extents=spec.extents,
        op_inventory=dict(Counter(region.aten_ops)),
        region_digest=spec.digest,
        gaia_input=gaia_input,
        cannot_be_plugin=region.cannot_be_plugin,
    )


def _shape(port: Port) -> TensorShape:
    return TensorShape(
        dtype=port.dtype,
        shape=tuple("data-dependent" if extent < 0 else extent for extent in port.shape),
    )


def _parameters(region: CarvedRegion, root: torch.nn.Module) -> dict[str, Any]:
    """Give the owning module's plain settings and the state tensors that are inputs of the node."""
    site = region.sites[0]
    module = dict(root.named_modules()).get(site.module_path.partition("@")[0])
    settings = {
        name: value
        for name, value in sorted((vars(module) if module is not None else {}).items())
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }
    tensors = {
        port.qualified_name: {"shape": list(port.shape), "dtype": str(port.dtype), "input": index}
        for index, port in enumerate(site.inputs)
        if port.role is not Role.ACTIVATION
    }
    return {"settings": settings, "tensors": tensors}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
