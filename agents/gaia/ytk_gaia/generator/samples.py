"""Samples the inputs of an evaluation task and computes what must come out.

Expected outputs are computed in float64 from the very bits the kernel will get. How far a right kernel may be off comes from
the noise of the computation itself: the error of torch at the region's own precision against float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch

from ytk_core.dtypes import DType, itemsize, storage_dtype
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Role
from ytk_gaia.generator.border import KernelTensor
from ytk_gaia.generator.extents import ShapeSet, choose, judged_extents
from ytk_gaia.generator.region_input import Region
from ytk_gaia.generator.region_runner import RegionRunner, from_storage, to_numpy, torch_dtype
from ytk_gaia.task_format import FLOATS, Sample, SampleLimits, SampleShapes, Task, TaskSpec, TaskTensor, expected_dtype

Array = np.ndarray[Any, Any]

NOISE_MULTIPLE = 16.0
"""How much worse than torch a kernel's rounding may be: it sums in another order."""
_AMBIGUOUS_SHARE = 0.01
_MAX_TIMED, _MIN_TIMED = 10, 3
_PER_SHAPE = 2
"""Samples at each shape besides the captured one."""
_MAX_TASK_BYTES = 192 << 20

_EPSILON = {DType.FLOAT64: 2.0**-52, DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
_TIE_ORDERS = 6
"""Other orders of equal values that are tried: an element of three equal ones keeps its place in all of them once in 729 times."""


# ---- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputRange:
    """What values an input takes: ``low``/``high`` for integers and grids, else mean and spread."""

    kind: str
    low: float = 0.0
    high: float = 1.0
    mean: float = 0.0
    spread: float = 1.0
    positive: bool = False


def _grid_placeholders(program: torch.export.ExportedProgram) -> set[str]:
    """Give the placeholders that are sampling grids."""
    grids = set()
    for node in program.graph.nodes:
        if node.op == "call_function" and "grid_sampler" in str(node.target) and len(node.args) > 1:
            source = node.args[1]
            # A permute or cast between placeholder and sampler does not change the range.
            while source.op == "call_function" and source.args and isinstance(source.args[0], torch.fx.Node):
                source = source.args[0]
            grids.add(source.name)
    return grids


def _index_limit(program: torch.export.ExportedProgram, name: str) -> int:
    """Give a bound for an integer input without an example: the smallest extent of the tensors it is used together with."""
    extents = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name == name:
            for user in node.users:
                values = [a.meta.get("val") for a in user.all_input_nodes if a is not node]
                extents += [int(n) for v in values if isinstance(v, torch.Tensor) for n in v.shape if n]
    return max(1, min(extents, default=2))


def input_ranges(region: Region) -> list[InputRange]:
    """Decide for each input what values to sample, from what is stored with the program and from who reads it."""
    placeholders = [node.name for node in region.program.graph.nodes if node.op == "placeholder"]
    grids = _grid_placeholders(region.program)
    ranges = []
    for tensor, feed, example in zip(region.border.inputs, region.border.placeholder_of, region.examples, strict=True):
        name = placeholders[feed]
        known = example if example is not None and example.numel() else None
        if tensor.dtype is DType.BOOL:
            ranges.append(InputRange("bool"))
        elif tensor.dtype not in FLOATS:
            limits = (
                (int(known.min()), int(known.max()))
                if known is not None
                else (0, _index_limit(region.program, name) - 1)
            )
            ranges.append(InputRange("int", *limits))
        elif name in grids:
            ranges.append(InputRange("grid", -1.2, 1.2))
        else:
            ranges.append(_float_range(known))
    return ranges


def _float_range(example: torch.Tensor | None) -> InputRange:
    if example is None:
        return InputRange("float")
    values = example.double()
    values = values[torch.isfinite(values)]
    if not values.numel():
        return InputRange("float")
    spread = float(values.std()) if values.numel() > 1 else 0.0
    mean = float(values.mean())
    # A constant example (a norm's weight of ones) says where values are, not how they spread.
    spread = spread or 0.1 * abs(mean) or 1.0
    positive = bool(values.min() >= 0) and bool(values.max() > 0)
    return InputRange("float", mean=mean, spread=spread, positive=positive)


def _draw(generator: np.random.Generator, shape: tuple[int, ...], dtype: DType, range_: InputRange) -> Array:
    if range_.kind == "bool":
        return generator.random(shape) < 0.5
    if range_.kind == "int":
        values: Array = generator.integers(int(range_.low), int(range_.high), size=shape, endpoint=True)
        return np.asarray(values, dtype=storage_dtype(dtype))
    if range_.kind == "grid":
        return _as_storage(generator.uniform(range_.low, range_.high, size=shape), dtype)
    values = range_.mean + range_.spread * generator.standard_normal(shape)
    # Where zero is allowed it is rare: a variance of exactly zero is a case of its own.
    return _as_storage(np.abs(values) + 1e-6 if range_.positive else values, dtype)


def _as_storage(values: Array, dtype: DType) -> Array:
    tensor = torch.from_numpy(np.asarray(values, dtype=np.float64)).to(torch_dtype(dtype))
    bits = tensor.view(torch.int16) if dtype is DType.BFLOAT16 else tensor
    array: Array = bits.numpy()
    return array.view(storage_dtype(dtype)).reshape(values.shape)


def _scaled(array: Array, dtype: DType, factor: float) -> Array:
    return _as_storage(from_storage(array, dtype).double().numpy() * factor, dtype)


def _draw_all(
    region: Region, ranges: Sequence[InputRange], generator: np.random.Generator, shapes: ShapeSet | None = None
) -> list[Array]:
    """Draw every input, at the captured shapes or others."""
    tensors = region.border.inputs
    at = shapes.inputs if shapes else [t.shape for t in tensors]
    return [_draw(generator, s, t.dtype, r) for s, t, r in zip(at, tensors, ranges, strict=True)]


def _all_but_one(arrays: Sequence[Array], roles: Sequence[Role]) -> list[Array] | None:
    """Give the same inputs with the last element of the last activation taken from its first; None where that changes nothing."""
    for index in reversed(range(len(arrays))):
        flat = arrays[index].reshape(-1)
        if roles[index] is Role.ACTIVATION and flat.size > 1 and flat[0] != flat[-1]:
            changed = flat.copy()
            changed[-1] = flat[0]
            return [changed.reshape(a.shape) if k == index else a for k, a in enumerate(arrays)]
    return None


def _structured(
    region: Region, ranges: Sequence[InputRange], generator: np.random.Generator
) -> Iterator[tuple[str, list[Array]]]:
    """Give inputs that random ones never are: almost all zero, in another order, very large, very small."""
    tensors = region.border.inputs
    roles = [tensor.role for tensor in region.spec.inputs]
    activations = [
        i
        for i, (r, role) in enumerate(zip(ranges, roles, strict=True))
        if r.kind == "float" and role is Role.ACTIVATION
    ]

    def fresh() -> list[Array]:
        return _draw_all(region, ranges, generator)

    base = fresh()
    # The same values in another order: catches what reads only part of them or sorts them out by position.
    backwards = [np.ascontiguousarray(a.reshape(-1)[::-1]).reshape(a.shape) for a in base]
    yield "permuted", backwards
    almost = _all_but_one(backwards, roles)
    if almost is not None:
        # Directly after: who recognises inputs by a part of them gives the answer to the one before.
        yield "almost", almost
    if not activations:
        return
    first = activations[0]
    if base[first].size:
        one_hot = fresh()
        zeros = np.zeros(tensors[first].shape)
        zeros.reshape(-1)[int(generator.integers(zeros.size))] = 1.0
        one_hot[first] = _as_storage(zeros, tensors[first].dtype)
        yield "one-hot", one_hot
    reach = 1024.0 if tensors[first].dtype in {DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16} else 16.0
    for word, factor in (("large", reach), ("small", 1 / reach)):
        values = fresh()
        for i in activations:
            values[i] = _scaled(values[i], tensors[i].dtype, factor)
        yield word, values


# ---- expectations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Expected:
    outputs: tuple[Array, ...]
    atol: tuple[float, ...]
    rtol: tuple[float, ...]
    skip: dict[int, Array]
    open_range: tuple[tuple[int, int] | None, ...] = ()


class _AmbiguousError(Exception):
    """A sample for which torch itself gives no stable answer; the text says why."""


def _limits(
    want: Array, own: Array, dtype: DType, longest_reduction: int, tolerance: float | None
) -> tuple[float, float, Array | None]:
    """Give atol, rtol and the mask of elements that cannot be judged, for one floating-point output."""
    epsilon = _EPSILON[dtype]
    if not np.array_equal(np.isfinite(want), np.isfinite(own)):
        msg = "overflows at the region's precision"
        raise _AmbiguousError(msg)
    finite = np.isfinite(want)
    scale = float(np.abs(want[finite]).max(initial=0.0))
    noise = np.where(finite, np.abs(np.where(finite, own, 0) - np.where(finite, want, 0)), 0.0)
    floor = 4 * epsilon * sqrt(1 + longest_reduction) * scale
    # Far beyond what this element's neighbours show: a rounding, comparison or nearest neighbour went the other way there.
    usual = float(np.quantile(noise, 0.9)) if noise.size else 0.0
    ambiguous = noise > max(16 * floor, 64 * usual)
    if ambiguous.mean() > _AMBIGUOUS_SHARE if ambiguous.size else False:
        msg = "discontinuous at too many elements"
        raise _AmbiguousError(msg)
    if tolerance is not None:
        return tolerance * scale, 0.0, ambiguous if ambiguous.any() else None
    worst = float(noise[~ambiguous].max(initial=0.0))
    return max(NOISE_MULTIPLE * worst, floor), 4 * epsilon, ambiguous if ambiguous.any() else None


def _open_order(
    runner: RegionRunner, inputs: Sequence[Array], torchs: Sequence[torch.Tensor], *, double: bool
) -> tuple[list[Array], list[tuple[int, int] | None]]:
    """Give for each output the elements that another order of equal values changes: which one is right is nobody's to say.

    Integers come with the range that these elements were seen in, widened to all places on the axis where that may be what they are.
    """
    masks = [torch.zeros_like(t, dtype=torch.bool) for t in torchs]
    ranges = [_range(t) for t in torchs]
    longest = 0
    for seed in range(_TIE_ORDERS):
        others, longest = runner.run_with_other_ties(inputs, seed, double=double)
        ranges = [_around(known, _range(other)) for known, other in zip(ranges, others, strict=True)]
        same = [torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True) for a, b in zip(torchs, others, strict=True)]
        masks = [mask | ~equal for mask, equal in zip(masks, same, strict=True)]
    return [mask.numpy() for mask in masks], [
        _around(known, (0, longest - 1)) if known and known[0] >= 0 and known[1] < longest else known
        for known in ranges
    ]


def _range(tensor: torch.Tensor) -> tuple[int, int] | None:
    if tensor.dtype.is_floating_point or tensor.dtype is torch.bool or not tensor.numel():
        return None
    return int(tensor.min()), int(tensor.max())


def _around(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    return (min(one[0], other[0]), max(one[1], other[1])) if one and other else None


def _expect(
    runner: RegionRunner,
    region: Region,
    inputs: Sequence[Array],
    longest: int,
    tolerance: float | None,
    *,
    double: bool,
    shapes: ShapeSet | None = None,
) -> _Expected:
    try:
        own = runner.run(inputs, double=False)
        wide = runner.run(inputs, double=True) if double else own
    except torch.linalg.LinAlgError as err:
        raise _AmbiguousError("a matrix is singular there") from err
    open_order: Sequence[Array | None] = [None] * len(wide)
    open_range: Sequence[tuple[int, int] | None] = ()
    if runner.breaks_ties:
        open_order, open_range = _open_order(runner, inputs, wide, double=double)
    outputs, atols, rtols, skip = [], [], [], {}
    for index, tensor in enumerate(region.border.outputs):
        dtype = expected_dtype(tensor.dtype)
        want, got = to_numpy(wide[index], dtype), to_numpy(own[index], dtype)
        declared = shapes.outputs[index] if shapes else tensor.shape
        if want.shape != declared:
            msg = f"output {index} has shape {list(want.shape)}, its declaration says {list(declared)}"
            raise UserError(msg, code="region_mismatch", hint="Carve the region again.")
        atol = rtol = 0.0
        if tensor.dtype in FLOATS:
            if runner.factorises and not np.isfinite(want).all():
                raise _AmbiguousError("a matrix is singular there")
            atol, rtol, mask = _limits(want, got, tensor.dtype, longest, tolerance)
            if mask is not None:
                skip[index] = mask
        elif not np.array_equal(want, got):
            msg = "an integer output depends on rounding"
            raise _AmbiguousError(msg)
        free = open_order[index]
        if free is not None and free.any():
            skip[index] = skip[index] | free if index in skip else free
        outputs.append(want)
        atols.append(atol)
        rtols.append(rtol)
    return _Expected(tuple(outputs), tuple(atols), tuple(rtols), skip, tuple(open_range))


def _works_in_double(runner: RegionRunner, inputs: Sequence[Array]) -> str:
    """Give why the region cannot run in float64, or an empty string."""
    try:
        runner.run(inputs, double=True)
    except (RuntimeError, TypeError, NotImplementedError) as err:
        return f"float64 is not possible: {str(err).splitlines()[0][:120]}"
    return ""


def _other_shapes(
    region: Region, runner: RegionRunner, ranges: Sequence[InputRange], generator: np.random.Generator
) -> tuple[list[ShapeSet], list[str]]:
    """Choose shapes besides the captured ones, where there are dynamic axes."""

    def problem_at(shapes: ShapeSet) -> str:
        try:
            results = runner.run(_draw_all(region, ranges, generator, shapes), double=False)
        except Exception as err:  # noqa: BLE001 -- whatever torch raises: the region does not take this shape
            return str(err).strip().partition("\n")[0][:160] or type(err).__name__
        if tuple(tuple(r.shape) for r in results) != shapes.outputs:
            return (
                f"torch gives {[list(r.shape) for r in results]}, the expressions {[list(s) for s in shapes.outputs]}"
            )
        return ""

    return choose(region.border, problem_at) if region.border.ranges else ([], [])


def must_read_bytes(runner: RegionRunner, samples: Sequence[Sequence[Array]]) -> int:
    """Give the input bytes that every right kernel has to read: those of elements that an output depends on.

    An element with a gradient changes an output, so it must be read; one without may still have to be (where relu cuts it off),
    so this is a lower bound. Integer inputs count as nothing. The smallest figure over the samples holds for all.
    """
    figures = []
    for inputs in samples:
        try:
            figures.append(sum(runner.dependent_elements(inputs)))
        except (RuntimeError, NotImplementedError, TypeError):
            return 0  # an operator without a derivative
    return min(figures, default=0)


def _timed_count(region: Region) -> int:
    inputs = sum(itemsize(t.dtype) * int(np.prod(t.shape)) for t in region.border.inputs)
    outputs = sum(expected_dtype(t.dtype).itemsize * int(np.prod(t.shape)) for t in region.border.outputs)
    return max(_MIN_TIMED, min(_MAX_TIMED, _MAX_TASK_BYTES // max(1, inputs + outputs)))


def _task_tensors(tensors: Sequence[KernelTensor]) -> tuple[TaskTensor, ...]:
    return tuple(TaskTensor(name=t.name, dtype=t.dtype, shape=t.shape, dynamic_axes=t.dynamic_axes) for t in tensors)


def build_task(
    region: Region,
    *,
    seed: int,
    longest_reduction: int,
    tolerance: float | None = None,
    runner: RegionRunner | None = None,
) -> Task:
    """Sample inputs, compute expectations and limits.

    Args:
        region: What the kernels are for.
        seed: Of the sampled values.
        longest_reduction: Terms of the longest sum in the lowered region: rounding grows with its root.
        tolerance: Accepted error relative to each output's largest magnitude; None: from the noise.
        runner: What runs the region; default: as it was captured.

    Raises:
        UserError: ``no_samples``: torch gives no stable answer for any sample.
    """
    generator = np.random.default_rng(seed)
    runner = runner or RegionRunner(region)
    ranges = input_ranges(region)
    drawn: list[tuple[str, list[Array], ShapeSet | None]] = [
        (n, a, None) for n, a in _structured(region, ranges, generator)
    ]
    drawn += [(f"random-{k}", _draw_all(region, ranges, generator), None) for k in range(_timed_count(region))]
    others, notes = _other_shapes(region, runner, ranges, generator)
    drawn += [(f"{s.name}-{k}", _draw_all(region, ranges, generator, s), s) for s in others for k in range(_PER_SHAPE)]
    problem = _works_in_double(runner, drawn[-1][1])
    notes += [problem] if problem else []
    samples, limits = [], []
    for name, inputs, shapes in drawn:
        try:
            expected = _expect(runner, region, inputs, longest_reduction, tolerance, double=not problem, shapes=shapes)
        except _AmbiguousError as err:
            notes.append(f"sample {name} left out: {err}")
            continue
        samples.append(Sample(tuple(inputs), expected.outputs, expected.skip))
        limits.append(
            SampleLimits(
                name=name,
                timed=name.startswith("random"),
                atol=expected.atol,
                rtol=expected.rtol,
                open_range=expected.open_range,
                shapes=SampleShapes(inputs=shapes.inputs, outputs=shapes.outputs) if shapes else None,
            )
        )
    if not any(limit.timed for limit in limits):
        raise UserError(
            f"torch gives no stable answer for any sampled input of {region.spec.name}: {'; '.join(notes)}",
            code="no_samples",
            hint="Carve a region whose outputs do not depend on rounding, or give --config tolerance.",
        )
    spec = TaskSpec(
        region_digest=region.spec.digest,
        inputs=_task_tensors(region.border.inputs),
        outputs=_task_tensors(region.border.outputs),
        must_read_bytes=must_read_bytes(runner, [a for n, a, _ in drawn if n.startswith("random")][:2]),
        extents=judged_extents(region.border, others, region.spec.extents),
        samples=tuple(limits),
        expectation="captured" if problem else "float64",
        tolerance_source=tolerance_source(tolerance, in_double=not problem),
        notes=tuple(notes),
    )
    return Task(spec, tuple(samples))


def tolerance_source(tolerance: float | None, *, in_double: bool) -> str:
    """Say in one line where a task's limits come from."""
    if tolerance is not None:
        return f"given: {tolerance:g} of each output's largest magnitude"
    if not in_double:
        return "4 eps sqrt(terms) of each output's largest magnitude (the region does not run in float64)"
    return f"noise model: {NOISE_MULTIPLE:g} x the error of torch at the region's precision against float64, at least 4 eps sqrt(terms) max|y|"
