"""Does a candidate's contract fit the task? Asked before anything is compiled."""

from __future__ import annotations

from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.formats import shape_expr
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Task, TaskSpec

Problem = tuple[Verdict, str]


def contract_problem(bundle: KernelBundle, task: Task, arch: ArchSpec | None = None) -> Problem | None:
    """Compare a candidate's contract with the task; give the first difference.

    Args:
        bundle: The candidate.
        task: What it must serve.
        arch: What it is compiled for; None: not compared.
    """
    meta, spec = bundle.meta, task.spec
    for field, wanted in meta.constraints.arch.items() if arch is not None else ():
        if getattr(arch, field) != wanted:
            return Verdict.COMPILE_ERROR, f"it is declared for {field} {wanted}, and compiled for {arch}"
    for attribute in meta.attributes:
        if attribute.required and attribute.value is None:
            return (
                Verdict.WRONG_SHAPE,
                f"it asks for the attribute {attribute.name!r}; the node of a region has no attributes",
            )
    if (len(meta.inputs), len(meta.outputs)) != (len(spec.inputs), len(spec.outputs)):
        return Verdict.WRONG_SHAPE, (
            f"declares {len(meta.inputs)} inputs and {len(meta.outputs)} outputs; "
            f"the region has {len(spec.inputs)} and {len(spec.outputs)}"
        )
    problem = _input_problem(meta, spec) or _extent_problem(meta, spec) or _divisor_problem(meta, spec)
    if problem:
        return Verdict.WRONG_SHAPE, problem
    for group in spec.groups():
        problem = _output_problem(meta, spec.at(group[0]))
        if problem:
            return Verdict.WRONG_SHAPE, problem
    if variant_of(meta, spec) is None:
        types = ", ".join(t.dtype for t in (*spec.inputs, *spec.outputs))
        return Verdict.WRONG_DTYPE, f"no variant takes and gives ({types})"
    return None


def variant_of(meta: PluginMeta, spec: TaskSpec) -> int | None:
    """Give the first variant that has the task's types, or None."""
    types = tuple(t.dtype for t in (*spec.inputs, *spec.outputs))
    variants = [tuple(t.dtype for t in (*v.inputs, *v.outputs)) for v in meta.variants]
    return variants.index(types) if types in variants else None


def _input_problem(meta: PluginMeta, spec: TaskSpec) -> str:
    for index, (declared, wanted) in enumerate(zip(meta.inputs, spec.inputs, strict=True)):
        dims = tuple(declared.dims)
        if len(dims) != len(wanted.shape) or any(d not in {None, n} for d, n in zip(dims, wanted.shape, strict=True)):
            return f"input {index} is declared {list(dims)}, the region's is {list(wanted.shape)}"
        for axis in wanted.dynamic_axes:
            if dims[axis] is not None:
                return f"input {index} axis {axis} is declared {dims[axis]}, the region's is dynamic"
    return ""


def _extent_problem(meta: PluginMeta, spec: TaskSpec) -> str:
    """Find a range that promises more than the task's samples can show."""
    tested = {(e.input, e.axis): e for e in spec.extents}
    for promised in meta.extents:
        shown = tested.get((promised.input, promised.axis))
        name = f"input {promised.input} axis {promised.axis}"
        if shown is None:
            captured = spec.inputs[promised.input].shape[promised.axis] if promised.input < len(spec.inputs) else 0
            if (promised.min, promised.max) != (captured, captured):
                return f"{name} is declared {promised.min} to {promised.max}, and tested at {captured} only"
        elif promised.min < shown.min or promised.max > shown.max:
            return (
                f"{name} is declared {promised.min} to {promised.max}, and tested from {shown.min} to {shown.max} only"
            )
        elif promised.min > shown.min or promised.max < shown.max:
            return f"{name} is declared {promised.min} to {promised.max}, and the region has {shown.min} to {shown.max}"
    return ""


def _divisor_problem(meta: PluginMeta, spec: TaskSpec) -> str:
    """Find a divisor or a constant that some sample of the task does not have: the region has to be served at all of them."""
    for constant in meta.constant_axes:
        for group in spec.groups():
            extent = spec.at(group[0]).inputs[constant.input].shape[constant.axis]
            if extent != constant.extent:
                name = f"input {constant.input} axis {constant.axis}"
                return f"{name} is declared to be {constant.extent} always, and the region has {extent} there"
    for index, axis, divisor in meta.constraints.divisible:
        for group in spec.groups():
            extent = spec.at(group[0]).inputs[index].shape[axis]
            if extent % divisor:
                return f"input {index} axis {axis} must be divisible by {divisor}, and the region has {extent} there"
    return ""


def _output_problem(meta: PluginMeta, spec: TaskSpec) -> str:
    """Evaluate the declared output shapes over the inputs' dims; give the first that is not the region's."""
    input_dims = [list(t.shape) for t in spec.inputs]
    for index, (output, wanted) in enumerate(zip(meta.outputs, spec.outputs, strict=True)):
        try:
            shape = tuple(shape_expr.evaluate(expr, input_dims) for expr in output.shape)
        except UserError as err:
            return f"output {index}: {err.message}"
        if shape != wanted.shape:
            return f"output {index} has the shape {list(shape)}, the region's is {list(wanted.shape)}"
    return ""
