"""``ytk kernelgen export``: a module or function of its own as a region, without a model round it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.capture import capture
from ytk_client.frontend.dynamic import DynamicAxis, at_extents, export_shapes, parse_dynamic, resolve
from ytk_client.frontend.load_model import LoadedModel, load_model
from ytk_client.frontend.tensors import dtype_of
from ytk_core.errors import UserError
from ytk_core.files import atomic_write
from ytk_core.formats.plugin_meta import Extent, Role
from ytk_core.formats.region import (
    EXTRA_FILE,
    RegionSpec,
    RegionTensor,
    encode_region_spec,
    operation_lines,
    region_digest,
)

_ROLE_OF_KIND = {
    "USER_INPUT": Role.ACTIVATION,
    "PARAMETER": Role.PARAMETER,
    "BUFFER": Role.BUFFER,
    "CONSTANT_TENSOR": Role.CONSTANT,
}


@dataclass(frozen=True)
class Exported:
    """A region that stands alone."""

    program: torch.export.ExportedProgram
    spec: RegionSpec


@dataclass(frozen=True)
class _Input:
    """One placeholder that is a tensor."""

    name: str
    kind: str
    value: torch.Tensor


def export_region(
    path: Path,
    entry: str = "Model",
    *,
    arguments: str = "get_fwd_args",
    name: str = "",
    namespace: str = "yasp",
    dynamic: Sequence[str] = (),
    seed: int = 0,
) -> Exported:
    """Export a module or function as a region whose inputs are its arguments, and then its weights.

    Args:
        path: Python file; it is run here.
        entry: Class, module or function in it.
        arguments: Function in it that gives the example inputs.
        name: Plugin name; default: the entry's.
        namespace: Plugin namespace.
        dynamic: Axes that may differ, as ``prepare --dynamic``.
        seed: Of torch's random numbers while the file runs.

    Raises:
        UserError: The file, the entry, a range or what it computes is nothing that a kernel can be made for.
        NotAvailableError: torch is not installed.
    """
    model = load_model(path, seed=seed, entry=entry, arguments=arguments)
    _check_arguments(model, entry, arguments)
    axes = resolve(parse_dynamic(dynamic), model)
    model = model.with_inputs(at_extents(model.flat_args, axes, "traced"))
    program = capture(model, export_shapes(model, axes))
    _check_pure(program)
    torch_adapter.flatten_signature(program)
    # It names graphs by memory address: equal regions would be different files, and no kernel would be found again.
    for node in program.graph.nodes:
        node.meta.pop("from_node", None)
    return Exported(program, _spec(program, axes, name or entry, namespace))


def write_exported(path: Path, exported: Exported) -> None:
    """Write a ``.pt2`` with its region spec; nothing is left half-written."""
    with atomic_write(path) as file:
        torch.export.save(exported.program, file, extra_files={EXTRA_FILE: encode_region_spec(exported.spec)})


def _identifier(text: str) -> str:
    cleaned = re.sub(r"\W", "_", text)
    return cleaned if re.match(r"[A-Za-z_]", cleaned) else f"t_{cleaned}"


def _inputs(program: torch.export.ExportedProgram) -> list[_Input]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    found = []
    for each in program.graph_signature.input_specs:
        value = values.get(each.arg.name)
        if isinstance(value, torch.Tensor):
            found.append(_Input(each.arg.name, each.kind.name, value))
    return found


def _check_arguments(model: LoadedModel, entry: str, arguments: str) -> None:
    try:
        inspect.signature(model.module.forward).bind(*model.args, **model.kwargs)
    except TypeError as err:
        raise UserError(
            f"what {arguments}() gives does not fit {entry}: {err}",
            code="model_bad_args",
            hint="Name the function that gives its example inputs with --args.",
        ) from err


def _check_pure(program: torch.export.ExportedProgram) -> None:
    """Refuse what writes to an input or keeps state: writes show only once the graph is functional."""
    with torch_adapter.quiet():
        functional = program.run_decompositions({})
    for each in functional.graph_signature.output_specs:
        if each.kind.name != "USER_OUTPUT":
            raise UserError(
                f"it writes to {each.target!r}; a kernel may write only its outputs",
                code="region_mutates",
                hint="Move the state out, or return the new value.",
            )


def _outputs(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    found = []
    for node in output.args[0]:
        value = node.meta.get("val") if hasattr(node, "meta") else node
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"it returns {value!r}, which is no tensor", code="not_a_tensor", hint="A kernel's outputs are tensors."
            )
        found.append(value)
    return found


def _spec(
    program: torch.export.ExportedProgram,
    axes: dict[int, list[DynamicAxis]],
    name: str,
    namespace: str,
) -> RegionSpec:
    given = _inputs(program)
    inputs = tuple(
        _tensor(_identifier(each.name), each.value, _ROLE_OF_KIND.get(each.kind, Role.CONSTANT)) for each in given
    )
    outputs = tuple(_tensor(f"output_{k}", value) for k, value in enumerate(_outputs(program)))
    if not inputs or not outputs:
        raise UserError(
            f"it has {len(inputs)} tensor inputs and {len(outputs)} outputs; at least one of each is needed",
            code="empty_region",
            hint="Give it a tensor argument, and return what it computes.",
        )
    if not re.fullmatch(r"[A-Za-z]\w*", namespace):
        raise UserError(f"--namespace is {namespace!r}", code="bad_option", hint="A letter, then letters, digits, _.")
    users = [k for k, each in enumerate(given) if each.kind == "USER_INPUT"]
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return RegionSpec(
        namespace=namespace,
        name=_identifier(name),
        version="1",
        inputs=inputs,
        outputs=outputs,
        aten_ops=tuple(dict.fromkeys(str(node.target) for node in calls)),
        digest=region_digest(ops=operation_lines(program.graph.nodes), inputs=inputs, outputs=outputs),
        torch_version=str(torch.__version__),
        module_path="",
        extents=tuple(
            Extent(input=users[position], axis=one.axis, min=one.min, opt=one.opt, max=one.max)
            for position, found in sorted(axes.items())
            for one in found
        ),
    )


def _tensor(name: str, value: torch.Tensor, role: Role = Role.ACTIVATION) -> RegionTensor:
    shape = tuple(_captured(extent) for extent in value.shape)
    free = tuple(axis for axis, extent in enumerate(value.shape) if not isinstance(extent, int))
    return RegionTensor(name=name, dtype=dtype_of(value), shape=shape, role=role, dynamic_axes=free)


def _captured(extent: Any) -> int:
    """Give the extent that the example inputs have."""
    if torch_adapter.is_unbacked(extent):
        raise UserError(
            f"an output's extent {extent} depends on tensor values",
            code="data_dependent_shape",
            hint="A kernel's output shapes follow from its inputs' shapes: pad to a fixed size, or leave this part out.",
        )
    return extent if isinstance(extent, int) else int(extent.node.hint)
