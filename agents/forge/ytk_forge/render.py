"""plugin_meta -> the C++ translation unit with the plugin's table, shape function and argument checks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ytk_core.dtypes import ONNX_NUMBER, DType
from ytk_core.errors import FormatError
from ytk_core.formats import shape_expr
from ytk_core.formats.plugin_meta import (
    FORMAT_NUMBER,
    AttributeDecl,
    AttributeType,
    InputDecl,
    PluginMeta,
    TensorType,
)
from ytk_core.formats.plugin_meta_checks import meta_digest

if TYPE_CHECKING:
    import jinja2

RENDERER_VERSION = "2"
"""Part of every build's cache key: increase it with any change to what is rendered."""

TEMPLATE_DIR = Path(__file__).parent / "templates"
CUDA_TYPES_DIR = TEMPLATE_DIR / "cuda_types"
ATTRIBUTE_NUMBER = {AttributeType.INTS: 1, AttributeType.FLOATS: 2, AttributeType.STRING: 3}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """The extents that one input axis may have: [min, max] in steps of ``multiple``; ``max`` None: no limit."""

    min: int
    max: int | None
    multiple: int


def input_axes(meta: PluginMeta, index: int) -> list[Axis]:
    """Join what a meta says about the axes of one input: made-for dims, constant axes, tested range, divisibility.

    Raises:
        FormatError: Two of them cannot hold together.
    """
    declared: InputDecl = meta.inputs[index]
    axes = []
    for axis in range(declared.rank):
        fixed = {dim for dim in (declared.dims[axis],) if dim is not None}
        fixed |= {c.extent for c in meta.constant_axes if (c.input, c.axis) == (index, axis)}
        ranges = [(e.min, e.max) for e in meta.extents if (e.input, e.axis) == (index, axis)]
        ranges += [(extent, extent) for extent in fixed]
        multiple = math.lcm(*(step for i, a, step in meta.constraints.divisible if (i, a) == (index, axis)))
        low = max((r[0] for r in ranges), default=0)
        high = min((r[1] for r in ranges), default=None)
        if high is not None and (high < low or (low == high and low % multiple)):
            msg = f"input {index} ({declared.name}), axis {axis}: no extent satisfies dims, constant_axes, extents and divisible together"
            raise FormatError(msg, hint="Correct plugin_meta: the declarations of this axis contradict each other.")
        axes.append(Axis(min=low, max=high, multiple=multiple))
    return axes


def c_string(text: str) -> str:
    """Give a C string literal with every byte outside plain ASCII as an octal escape."""
    safe = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 !#$%&'()*+,-./:;<=>@[]^_`{|}~")
    # Always three octal digits: a following digit cannot join the escape.
    return '"' + "".join(chr(b) if b in safe else f"\\{b:03o}" for b in text.encode()) + '"'


def braces(items: Iterable[Any]) -> str:
    """Give a C++ braced list."""
    return "{" + ", ".join(map(str, items)) + "}"


def c_double(value: float) -> str:
    """Give a C++ literal of exactly this double.

    Raises:
        FormatError: It is not a number (nothing equals NaN, so nothing could match it).
    """
    if math.isnan(value):
        msg = "attribute value NaN: no node's value could equal it"
        raise FormatError(msg, hint="Leave the attribute's value open (null) in plugin_meta.")
    if math.isinf(value):
        return "-__builtin_inf()" if value < 0 else "__builtin_inf()"
    return float(value).hex()


def render_table(meta: PluginMeta, *, old_libstdcxx: bool = False) -> str:
    """Render the translation unit that exports ``ytk_plugin()`` for a checked meta.

    Args:
        meta: The contract.
        old_libstdcxx: The target's libstdc++ is older than the headers that the kernel is compiled with may assume: also
            define what they call and it lacks.

    Raises:
        FormatError: A launcher symbol is not a C identifier, or declarations contradict each other.
    """
    launcher = meta.launcher
    return (
        _environment()
        .get_template("cpu_plugin.cpp.j2")
        .render(
            renderer_version=RENDERER_VERSION,
            namespace=meta.plugin_namespace,
            name=meta.plugin_name,
            version=meta.plugin_version,
            launch=_symbol(launcher.launch, "launch"),
            workspace=_symbol(launcher.workspace, "workspace") if launcher.workspace is not None else None,
            has_workspace=launcher.workspace is not None or launcher.fixed_workspace_bytes > 0,
            fixed_workspace_bytes=launcher.fixed_workspace_bytes,
            alignment_bytes=max(1, meta.constraints.alignment_bytes),
            inputs=[input_axes(meta, index) for index in range(len(meta.inputs))],
            outputs=[[_output_axis(text) for text in output.shape] for output in meta.outputs],
            output_ranks=[output.rank for output in meta.outputs],
            variants=[
                {
                    "id": variant.id,
                    **_numbers("in", variant.inputs),
                    **_numbers("out", variant.outputs),
                }
                for variant in meta.variants
            ],
            attributes=[_attribute(decl) for decl in meta.attributes],
            shape_helpers=[
                f"[[maybe_unused]] {line}" if line.startswith("static") else line
                for line in shape_expr.C_HELPERS.splitlines()
            ],
            meta_digest=meta_digest(meta),
            old_libstdcxx=old_libstdcxx,
        )
    )


def render_skeleton(meta: PluginMeta, tensorrt_major: int) -> str:
    """Render the translation unit with the TensorRT plugin class: it calls the table of :func:`render_table`.

    Args:
        meta: The contract.
        tensorrt_major: 8 gives IPluginV2DynamicExt, 10 and later IPluginV3.

    Raises:
        FormatError: No variant has types that this TensorRT knows ("no_variant_for_engine").
    """
    known = _TRT_DTYPES | (set() if tensorrt_major < 10 else _TRT10_DTYPES)
    if not any({t.dtype for t in (*v.inputs, *v.outputs)} <= known for v in meta.variants):
        unknown = sorted(
            {t.dtype.value for v in meta.variants for t in (*v.inputs, *v.outputs)} - {t.value for t in known}
        )
        msg = f"every variant of {meta.plugin_namespace}::{meta.plugin_name} has types that TensorRT {tensorrt_major} plugins do not take: {', '.join(unknown)}"
        hint = "Generate the kernel with variants of float32, float16, int8 or int32 (TensorRT 8.6 narrows int64 to int32)."
        raise FormatError(msg, code="no_variant_for_engine", hint=hint)
    template = "trt_plugin_v3.cpp.j2" if tensorrt_major >= 10 else "trt_plugin_v2.cpp.j2"
    shapes = [
        [
            {"code": _builder_code(shape_expr.parse(text)), "text": shape_expr.render(shape_expr.parse(text))}
            for text in output.shape
        ]
        for output in meta.outputs
    ]
    return (
        _environment()
        .get_template(template)
        .render(
            renderer_version=RENDERER_VERSION, inputs=len(meta.inputs), outputs=len(meta.outputs), output_shapes=shapes
        )
    )


_TRT_DTYPES = {DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.INT32, DType.BOOL, DType.UINT8}
_TRT10_DTYPES = {DType.BFLOAT16, DType.INT64}
_DIMENSION_OPERATIONS = {
    "+": "kSUM",
    "-": "kSUB",
    "*": "kPROD",
    "//": "kFLOOR_DIV",
    "ceildiv": "kCEIL_DIV",
    "min": "kMIN",
    "max": "kMAX",
    "==": "kEQUAL",
    "<": "kLESS",
}


def _builder_code(expression: shape_expr.Expr) -> str:
    """Give an output extent as calls on TensorRT's expression builder."""
    match expression:
        case shape_expr.Literal(value=value):
            return f"e.constant({value})"
        case shape_expr.Dim(input=number, axis=axis):
            return f"in[{number}].d[{axis}]"
        case shape_expr.Operation(op=op, left=left, right=right):
            return f"e.apply(trt::DimensionOperation::{_DIMENSION_OPERATIONS[op]}, {_builder_code(left)}, {_builder_code(right)})"


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE_DIR),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is C++; strings pass through the c_string filter
        # Statements are comments and values are ${...}: the template stays readable, formattable C++.
        line_statement_prefix="//%",
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="${",
        variable_end_string="}",
        comment_start_string="/*#",
        comment_end_string="#*/",
        keep_trailing_newline=True,
    )
    environment.filters.update(c_string=c_string, braces=braces)
    return environment


def _symbol(name: str, what: str) -> str:
    if not _IDENTIFIER.match(name) or name == "ytk_plugin":
        msg = f"launcher.{what}: {name!r} cannot be the kernel's symbol"
        raise FormatError(msg, hint="Name a function of the bundle's source: a C identifier other than ytk_plugin.")
    return name


def _numbers(side: str, types: list[TensorType]) -> dict[str, list[int]]:
    return {
        f"{side}_dtypes": [ONNX_NUMBER[t.dtype] for t in types],
        f"{side}_formats": [FORMAT_NUMBER[t.format] for t in types],
    }


def _output_axis(text: str) -> dict[str, str]:
    """Give one output extent as a C expression, and as text for the comment beside it."""
    expression = shape_expr.parse(text)
    return {"c": shape_expr.to_c(expression, "in"), "text": shape_expr.render(expression)}


def _attribute(decl: AttributeDecl) -> dict[str, Any]:
    baked: dict[str, Any] = {"ints": None, "floats": None, "string": None, "string_bytes": 0}
    if isinstance(decl.value, str):
        baked |= {"string": decl.value, "string_bytes": len(decl.value.encode())}
    elif decl.value is not None and decl.type is AttributeType.INTS:
        baked["ints"] = [int(item) for item in decl.value]
    elif decl.value is not None:
        baked["floats"] = [c_double(float(item)) for item in decl.value]
    return {"name": decl.name, "type": ATTRIBUTE_NUMBER[decl.type], "required": decl.required, **baked}
