"""Reads a region's ``.pt2`` and says what the kernel's border is.

``torch.export.load`` executes code from a hostile file by more than one way, so this module runs only inside the sandboxed
generator task.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ytk_core.dtypes import DType
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.plugin_meta import Role
from ytk_core.formats.region import RegionSpec, RegionTensor, operation_lines, read_region_spec, region_digest
from ytk_gaia.generator import inductor_adapter as inductor
from ytk_gaia.generator.border import Border, KernelTensor
from ytk_gaia.generator.dims import DimSymbols, captured_extent, check_axes, dynamic_axes
from ytk_gaia.generator.extents import bounds

_ROLE_OF_KIND = {
    "USER_INPUT": Role.ACTIVATION,
    "PARAMETER": Role.PARAMETER,
    "BUFFER": Role.BUFFER,
    "CONSTANT_TENSOR": Role.CONSTANT,
}
_HINT = "Carve the region again with `ytk embedded prepare`, or export it again with `ytk kernelgen export`."


@dataclass(frozen=True)
class _Placeholder:
    """One placeholder of the program: its name, fake value, kind, and the stored tensor behind it (None: user input)."""

    name: str
    target: str
    kind: str
    value: Any
    stored: torch.Tensor | None


@dataclass(frozen=True)
class Region:
    """A loaded region.

    Attributes:
        program: The exported program, on the CPU.
        spec: Its border and identity.
        border: The same as the launcher sees it.
        examples: For each input of the border, the tensor stored with the program (an example input or a weight), if any.
    """

    program: torch.export.ExportedProgram
    spec: RegionSpec
    border: Border
    examples: tuple[torch.Tensor | None, ...]


def _dtype(value: torch.Tensor, where: str) -> DType:
    name = str(value.dtype).removeprefix("torch.")
    try:
        return DType(name)
    except ValueError as err:
        msg = f"{where} has dtype {name}, which no engine passes to a kernel"
        raise UserError(msg, code="unsupported_dtype", hint=f"Kernels take {', '.join(DType)}.") from err


def _shape(value: torch.Tensor, where: str) -> tuple[int, ...]:
    return tuple(captured_extent(extent, where) for extent in value.shape)


def identifier(text: str) -> str:
    """Make a C identifier out of a name, as the contract asks."""
    cleaned = re.sub(r"\W", "_", text)
    return cleaned if re.match(r"[A-Za-z_]", cleaned) else f"t_{cleaned}"


def _placeholders(program: torch.export.ExportedProgram) -> list[_Placeholder]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    found = []
    for spec in program.graph_signature.input_specs:
        target, kind = str(spec.target or ""), spec.kind.name
        stored = program.state_dict.get(target, program.constants.get(target)) if target else None
        found.append(_Placeholder(spec.arg.name, target, kind, values.get(spec.arg.name), stored))
    return found


def _output_values(program: torch.export.ExportedProgram) -> list[tuple[str, Any]]:
    """Give name and value of each user output, in order."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = []
    for spec, node in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if spec.kind.name != "USER_OUTPUT":
            msg = (
                f"the region writes to {spec.target!r} ({spec.kind.name.lower()}); a kernel may write only its outputs"
            )
            raise UserError(msg, code="region_mutates", hint="Move the state out of the region.")
        value = node.meta.get("val") if hasattr(node, "meta") else node
        if not isinstance(value, torch.Tensor):
            msg = f"the region returns {value!r}, which is no tensor"
            raise UserError(msg, code="not_a_tensor", hint="A kernel's outputs are tensors.")
        results.append((getattr(node, "name", ""), value))
    return results


def _aten_ops(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def derive_spec(program: torch.export.ExportedProgram, name: str) -> RegionSpec:
    """Describe a program that carries no spec: every placeholder is an input of the node, in the program's order.

    Args:
        program: Fixed in shape, or with dynamic dims.
        name: Plugin name; made a C identifier.

    Raises:
        UserError: A border tensor has data-dependent extents, is no tensor, or of a dtype that no engine passes.
    """
    inputs = tuple(
        RegionTensor(
            name=identifier(p.name),
            dtype=_dtype(p.value, f"input {p.name}"),
            shape=_shape(p.value, f"input {p.name}"),
            role=_ROLE_OF_KIND.get(p.kind, Role.CONSTANT),
            dynamic_axes=dynamic_axes(p.value),
        )
        for p in _placeholders(program)
        if isinstance(p.value, torch.Tensor)
    )
    outputs = tuple(
        RegionTensor(
            name=f"output_{index}",
            dtype=_dtype(v, f"output {index}"),
            shape=_shape(v, f"output {index}"),
            dynamic_axes=dynamic_axes(v),
        )
        for index, (_, v) in enumerate(_output_values(program))
    )
    if not inputs or not outputs:
        msg = f"the region has {len(inputs)} tensor inputs and {len(outputs)} outputs; at least one of each is needed"
        raise UserError(msg, code="empty_region", hint=_HINT)
    digest = region_digest(ops=operation_lines(program.graph.nodes), inputs=inputs, outputs=outputs)
    ops = tuple(dict.fromkeys(_aten_ops(program)))
    version = str(torch.__version__)
    return RegionSpec(
        namespace="yasp", name=identifier(name), version="1", inputs=inputs, outputs=outputs,
        aten_ops=ops, digest=digest, torch_version=version,
    )  # fmt: skip


def _match(spec: RegionSpec, placeholders: list[_Placeholder]) -> list[int]:
    """Give for each input of the spec the placeholder that it feeds: by name, else by position."""
    names: dict[str, int] = {}
    for index, p in enumerate(placeholders):
        for alias in (p.name, p.target, identifier(p.target) if p.target else "", identifier(p.name)):
            if alias:
                names.setdefault(alias, index)
    found = [names.get(tensor.name) for tensor in spec.inputs]
    if None not in found and len(set(found)) == len(found):
        return [index for index in found if index is not None]
    tensors = [i for i, p in enumerate(placeholders) if isinstance(p.value, torch.Tensor)]
    users = [i for i in tensors if placeholders[i].kind == "USER_INPUT"]
    for candidates in (users, tensors):
        if len(candidates) == len(spec.inputs):
            return candidates
    msg = (
        f"the region spec names {len(spec.inputs)} inputs ({', '.join(t.name for t in spec.inputs)}), the program has "
        f"{len(users)} inputs and {len(tensors) - len(users)} weights ({', '.join(p.name for p in placeholders)})"
    )
    raise FormatError(msg, code="region_mismatch", hint=_HINT)


def _check_tensor(kind: str, index: int, tensor: RegionTensor, value: torch.Tensor) -> None:
    where = f"{kind} {index} ({tensor.name})"
    found = (_dtype(value, where), _shape(value, where))
    if len(found[1]) == len(tensor.shape) and kind == "input":
        check_axes(where, tensor.dynamic_axes, value)
    free = {*dynamic_axes(value), *tensor.dynamic_axes}
    fixed = [[n for axis, n in enumerate(shape) if axis not in free] for shape in (found[1], tensor.shape)]
    if found[0] != tensor.dtype or len(found[1]) != len(tensor.shape) or fixed[0] != fixed[1]:
        msg = f"{kind} {index} ({tensor.name}) is {tensor.dtype}{list(tensor.shape)} in the spec and {found[0]}{list(found[1])} in the program"
        raise FormatError(msg, code="region_mismatch", hint=_HINT)


def bind(program: torch.export.ExportedProgram, spec: RegionSpec) -> Region:
    """Bind a spec to a program: which placeholder each input feeds, and what is baked into the kernel.

    Raises:
        FormatError: Spec and program do not fit together.
        UserError: An axis that was declared dynamic is not, a mutation, or a dtype that kernels do not take.
    """
    placeholders = _placeholders(program)
    feeds = _match(spec, placeholders)
    for index, (tensor, feed) in enumerate(zip(spec.inputs, feeds, strict=True)):
        _check_tensor("input", index, tensor, placeholders[feed].value)
    results = _output_values(program)
    if len(results) != len(spec.outputs):
        msg = f"the region spec names {len(spec.outputs)} outputs, the program has {len(results)}"
        raise FormatError(msg, code="region_mismatch", hint=_HINT)
    for index, (tensor, (_, value)) in enumerate(zip(spec.outputs, results, strict=True)):
        _check_tensor("output", index, tensor, value)
    baked = {}
    for index, p in enumerate(placeholders):
        if index in feeds or not isinstance(p.value, torch.Tensor):
            continue
        if p.stored is None:
            msg = f"input {p.name} of the program is not in the region spec, and no value is stored for it"
            raise FormatError(msg, code="region_mismatch", hint=_HINT)
        baked[index] = p.stored.detach()
    fed = [placeholders[feed].value for feed in feeds]
    symbols = DimSymbols(fed)
    border = Border(
        inputs=tuple(
            KernelTensor(
                identifier(t.name), t.dtype, _shape(v, t.name), dynamic_axes(v), symbols.expressions(v, t.name)
            )
            for t, v in zip(spec.inputs, fed, strict=True)
        ),
        outputs=tuple(
            KernelTensor(
                identifier(t.name),
                t.dtype,
                _shape(v, t.name),
                dynamic_axes(v),
                symbols.expressions(v, f"output {t.name}"),
            )
            for t, (_, v) in zip(spec.outputs, results, strict=True)
        ),
        placeholder_of=tuple(feeds),
        baked=baked,
        ranges={place: bounds(program.range_constraints.get(s)) for place, s in symbols.places.items()},
    )
    examples = _examples(program, placeholders)
    return Region(program, spec, border, tuple(examples[feed] for feed in feeds))


def _examples(program: torch.export.ExportedProgram, placeholders: list[_Placeholder]) -> list[torch.Tensor | None]:
    """Give what is stored for each placeholder: a weight, or the example input of the export."""
    stored = getattr(program, "example_inputs", None)
    leaves = inductor.tree_leaves(stored) if stored else []
    users = [i for i, p in enumerate(placeholders) if p.kind == "USER_INPUT"]
    by_index: dict[int, Any] = dict(zip(users, leaves, strict=True)) if len(leaves) == len(users) else {}
    result: list[torch.Tensor | None] = []
    for index, p in enumerate(placeholders):
        value = by_index.get(index, p.stored)
        result.append(value.detach() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else None)
    return result


def load_region(path: Path, name: str = "") -> Region:
    """Load a region.

    Args:
        path: The ``.pt2``.
        name: Plugin name where the file carries no spec; default: the file's stem.

    Raises:
        FormatError: It cannot be loaded, or spec and program do not fit together.
        UserError: It is something that no kernel can be made for.
    """
    spec = read_region_spec(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about non-writable buffers, which we never write
            program = torch.export.load(path)
    except Exception as err:  # every error of a loader of foreign files means the same to the user
        msg = f"{path.name} cannot be loaded by torch {torch.__version__}: {type(err).__name__}: {str(err)[:200]}"
        raise FormatError(msg, code="bad_region", hint=_HINT) from err
    return bind(program, spec or derive_spec(program, name or path.stem))
