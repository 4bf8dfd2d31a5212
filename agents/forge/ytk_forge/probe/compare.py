"""A library's table against the plugin_meta that it was rendered from."""

from __future__ import annotations

from collections.abc import Sequence

from ytk_core.abi import ctypes_abi
from ytk_core.dtypes import ONNX_NUMBER
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import FORMAT_NUMBER, AttributeType, PluginMeta, TensorType
from ytk_core.formats.plugin_meta_checks import meta_digest
from ytk_forge.probe.run import Answer
from ytk_forge.render import ATTRIBUTE_NUMBER

TABLE_CHECKS = ("abi", "name", "arity", "variants", "attributes", "functions", "meta_digest", "shape")
REGISTERED = "registered"
"""The check of what a TensorRT plugin library would register."""
_FIX = "Build the library again from its bundle; if it stays so, report it with the build log."


def compare_table(answer: Answer, meta: PluginMeta) -> list[CheckResult]:
    """Compare everything a host reads from the table, and the shape function's answers, with the meta."""
    table = answer.table
    assert table is not None
    attributes = [(a.name, ATTRIBUTE_NUMBER[a.type], int(a.required)) for a in meta.attributes]
    workspace = meta.launcher.workspace is not None or meta.launcher.fixed_workspace_bytes > 0
    pairs = {
        "abi": (f"ABI {table.abi_version}", f"ABI {ctypes_abi.ABI_VERSION}"),
        "name": (
            _identity(table.namespace, table.name, table.version),
            _identity(meta.plugin_namespace, meta.plugin_name, meta.plugin_version),
        ),
        "arity": (
            f"{table.inputs} inputs, {table.outputs} outputs",
            f"{len(meta.inputs)} inputs, {len(meta.outputs)} outputs",
        ),
        "variants": (
            "; ".join(_variant(v.id, v.inputs, v.outputs) for v in table.variants),
            "; ".join(_variant(v.id, _types(v.inputs), _types(v.outputs)) for v in meta.variants),
        ),
        "attributes": (_attributes(table.attributes), _attributes(attributes)),
        "functions": (
            _functions(launch=table.launch, shape=table.shape, workspace=table.workspace),
            _functions(launch=True, shape=True, workspace=workspace),
        ),
        "meta_digest": (str(table.meta_digest), meta_digest(meta)),
    }
    results = [
        CheckResult(name=name, ok=found == wanted, found=found, wanted=wanted, fix="" if found == wanted else _FIX)
        for name, (found, wanted) in pairs.items()
    ]
    return [*results, _shape_check(answer)]


def compare_creators(answer: Answer, meta: PluginMeta, tensorrt_major: int) -> CheckResult:
    """Compare the creators that TensorRT would find with what a node asks for: (namespace, name, version, attributes)."""
    interface = "PLUGIN CREATOR_V3ONE 1.0" if tensorrt_major >= 10 else "IPluginCreator"
    fields = ", ".join(f"{name} {_FIELD_TYPES[kind]}" for name, kind in field_types(meta)) or "no attributes"
    wanted = f"{interface}: {_identity(meta.plugin_namespace, meta.plugin_name, meta.plugin_version)}, {fields}"
    texts = []
    for creator in answer.creators:
        own = ", ".join(f"{name} {_named(kind, _FIELD_TYPES)}" for name, kind in creator.fields) or "no attributes"
        text = f"{creator.interface}: {_identity(creator.namespace, creator.name, creator.version)}, {own}"
        texts.append(text if creator.created else f"{text}; but it makes no plugin of these attributes")
    found = " | ".join(texts) or "no creator"
    return CheckResult(
        name=REGISTERED, ok=found == wanted, found=found, wanted=wanted, fix="" if found == wanted else _FIX
    )


def field_types(meta: PluginMeta) -> list[tuple[str, int]]:
    """Give the fields that a creator of this contract lists: names and TensorRT's type numbers."""
    return [(a.name, _FIELD_OF[a.type]) for a in meta.attributes]


_FIELD_TYPES = {1: "float32", 5: "int32", 6: "char"}
_FIELD_OF = {AttributeType.INTS: 5, AttributeType.FLOATS: 1, AttributeType.STRING: 6}


def _types(types: list[TensorType]) -> list[tuple[int, int]]:
    return [(ONNX_NUMBER[t.dtype], FORMAT_NUMBER[t.format]) for t in types]


_DTYPE_NAMES = {number: dtype.value for dtype, number in ONNX_NUMBER.items()}
_FORMAT_NAMES = {number: fmt.value for fmt, number in FORMAT_NUMBER.items()}
_ATTRIBUTE_NAMES = {number: kind.value for kind, number in ATTRIBUTE_NUMBER.items()}


def _variant(name: str | None, inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]]) -> str:
    """Give one variant for people, and the same text only for the same variant."""

    def side(types: Sequence[tuple[int, int]]) -> str:
        return ", ".join(f"{_named(d, _DTYPE_NAMES)} {_named(f, _FORMAT_NAMES)}" for d, f in types)

    return f"{name}: {side(inputs)} -> {side(outputs)}"


def _attributes(attributes: Sequence[tuple[str | None, int, int]]) -> str:
    return ", ".join(f"{n} {_named(k, _ATTRIBUTE_NAMES)}{' required' if r else ''}" for n, k, r in attributes) or "none"


def _named(number: int, names: dict[int, str]) -> str:
    return names.get(number, f"<{number}>")


def _identity(namespace: str | None, name: str | None, version: str | None) -> str:
    return f"{namespace}::{name} version {version}"


def _functions(*, launch: bool, shape: bool, workspace: bool) -> str:
    names = [name for name, there in (("launch", launch), ("shape", shape), ("workspace", workspace)) if there]
    return ", ".join(names)


def _shape_check(answer: Answer) -> CheckResult:
    """Compare the compiled shape function with the meta's expressions, case by case."""
    wanted = "the outputs of plugin_meta's shape expressions"
    if len(answer.shapes) != len(answer.cases):
        found = f"{len(answer.shapes)} answers to {len(answer.cases)} calls"
        return CheckResult(name="shape", ok=False, found=found, wanted=wanted, fix=_FIX)
    for case, (status, dims) in zip(answer.cases, answer.shapes, strict=True):
        if (case.want is None) != (status != 0) or (case.want is not None and dims != case.want):
            found = f"inputs {case.inputs}: status {status}, outputs {dims}"
            return CheckResult(name="shape", ok=False, found=found, wanted=f"outputs {case.want}", fix=_FIX)
    return CheckResult(name="shape", ok=True, found=wanted, wanted=wanted)
