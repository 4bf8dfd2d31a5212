"""The corpus of invalid files: every one must be refused with an error that names the file and the place."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import io
import json
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ytk_core.digests import digest_bytes

GOLDEN = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Invalid:
    """``file``: a golden name, which decides the reader. ``place``: what the message must contain besides the file's name."""

    file: str
    name: str
    data: bytes
    place: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def _set(raw: Any, path: str, value: Any) -> Any:
    """Give a copy with the value at a dotted path replaced; DELETE removes it."""
    raw = copy.deepcopy(raw)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target = raw
    for part in parents:
        target = target[part]
    if value is DELETE:
        del target[last]
    else:
        target[last] = value
    return raw


DELETE = object()

# ---- JSON ------------------------------------------------------------------------------------------------------------


def _generic_json(file: str) -> Iterator[Invalid]:
    text = (GOLDEN / file).read_bytes()
    raw = json.loads(text)
    top = "0." if isinstance(raw, list) else ""

    def case(name: str, value: Any, place: str) -> Invalid:
        return Invalid(file, name, json.dumps(value).encode(), place)

    yield Invalid(file, "empty", b"", "line 1, column 1")
    yield Invalid(file, "truncated", text[: len(text) // 2], "line")
    yield Invalid(file, "not JSON", b"schema_version: 1\n", "line 1, column 1")
    yield Invalid(file, "not UTF-8", b'{"schema_version": "\xff"}', "byte 20")
    version = b'"schema_version": 1'
    yield Invalid(file, "NaN", text.replace(version, version[:-1] + b"NaN", 1), "NaN")
    yield Invalid(file, "nested bomb", b"[" * 100_000, "nested too deeply")
    yield Invalid(
        file, "duplicate key", text.replace(version, version + b"," + version, 1), "'schema_version' occurs twice"
    )
    yield case("null", None, "NoneType")
    yield case("a string", "schema_version", "str")
    yield case("newer schema", _set(raw, f"{top}schema_version", 2), "schema_version is 2")
    yield case("older schema", _set(raw, f"{top}schema_version", 0), "schema_version is 0")
    yield case("schema as text", _set(raw, f"{top}schema_version", "1"), "schema_version is '1'")
    yield case("schema as boolean", _set(raw, f"{top}schema_version", True), "schema_version is True")
    yield case("no schema", _set(raw, f"{top}schema_version", DELETE), "schema_version is None")
    yield case("unknown key", _set(raw, f"{top}colour", "red"), "colour")


_DIGEST0 = "blake3:" + "0" * 64

JSON_EDITS: dict[str, list[tuple[str, str, Any, str]]] = {
    "Fold.so.manifest.json": [
        ("wrong arch", "arch_spec", "amd64-sm87-linux-glibc236-ov20264", "runtime"),
        ("digest of another kind", "so_digest", "sha256:" + "0" * 64, "sha256"),
        ("edited meta", "meta.plugin_name", "Unfold", "meta_digest"),
        ("invalid meta", "meta.inputs.0.rank", 9, "inputs[0].rank"),
        ("check without verdict", "checks.0.ok", "yes", "$.checks[0].ok"),
        ("duplicate checks", "checks.1.name", "machine", "$.checks"),
        ("tools not a map", "tools", ["g++"], "$.tools"),
    ],
    "ytk_region.json": [
        ("no inputs", "inputs", [], "$.inputs"),
        ("unknown dtype", "inputs.0.dtype", "float8", "$.inputs[0].dtype"),
        ("unknown role", "inputs.1.role", "weights", "$.inputs[1].role"),
        ("dynamic axis beyond rank", "inputs.1.dynamic_axes", [1], "$.inputs[1]"),
        ("negative extent", "outputs.0.shape", [1, -1, 56, 56], "$.outputs[0]"),
        ("shape of text", "outputs.0.shape", ["n"], "$.outputs[0].shape[0]"),
    ],
    "plugins.json": [
        ("missing field", "rows.0.has_plugin", DELETE, "has_plugin"),
        ("contradictory placeholder", "rows.0.placeholder", "yasp::Fold", "$.rows[0].placeholder"),
        ("duplicate placeholder", "rows.1", "COPY:rows.0", "'yasp::Col2im' occurs twice"),
        ("absolute path", "rows.0.gaia_input", "/etc/passwd", "$.rows[0].gaia_input"),
        ("path with ..", "rows.0.gaia_input", "a/../../b.pt2", "$.rows[0].gaia_input"),
        ("no sites", "rows.1.sites", 0, "$.rows[1].sites"),
        ("sites as text", "rows.1.sites", "2", "$.rows[1].sites"),
    ],
    "candidates.json": [
        ("open reason", "0.reason", "because", "$[0].reason"),
        ("dtype unknown", "1.node_inputs.0.dtype", "complex64", "$[1].node_inputs[0].dtype"),
        (
            "shape with a fraction",
            "0.call_site_shapes.0.inputs.0.shape",
            [1.5],
            "$[0].call_site_shapes[0].inputs[0].shape[0]",
        ),
        ("duplicate", "1.proposed_op", "yasp::Col2im", "'yasp::Col2im' occurs twice"),
        ("entry is no object", "2", "yasp::NonZero", "$[2]"),
    ],
    "fx_nodes.json": [
        ("duplicate node", "nodes.2.name", "x", "'x' occurs twice"),
        ("inputs is text", "nodes.1.inputs", "x", "$.nodes[1].inputs"),
        ("line is text", "nodes.1.source_line", "17", "$.nodes[1].source_line"),
    ],
    "job_spec.json": [
        ("unknown kind", "kind", "engine.paint", "$.kind"),
        ("negative size as text", "inputs.0.size_bytes", "10", "$.inputs[0].size_bytes"),
        ("params of a list", "params", [1], "$.params"),
        ("unknown key inside", "inputs.0.path", "/x", "$.inputs[0]"),
    ],
    "verify.json": [
        ("duplicate output", "outputs.1", "COPY:outputs.0", "'logits' of sample 0 occurs twice"),
        ("bad arch", "arch_spec", "amd64", "$.arch_spec"),
        ("infinite as text", "outputs.0.sqnr_db", "inf", "$.outputs[0].sqnr_db"),
        ("unknown key inside", "conditions.before.humidity", 3, "humidity"),
    ],
}


def _copied(raw: Any, value: Any) -> Any:
    """Give the value, or the one at the path where it is ``COPY:<path>``."""
    if not (isinstance(value, str) and value.startswith("COPY:")):
        return value
    for part in value[5:].split("."):
        raw = raw[int(part) if part.isdigit() else part]
    return raw


def json_cases() -> Iterator[Invalid]:
    for file, edits in JSON_EDITS.items():
        yield from _generic_json(file)
        raw = json.loads((GOLDEN / file).read_bytes())
        for name, path, value, place in edits:
            yield Invalid(file, name, json.dumps(_set(raw, path, _copied(raw, value))).encode(), place)
    yield Invalid("candidates.json", "an object", b'{"schema_version": 1}', "list")
    yield Invalid("plugins.json", "a list", b"[]", "object")


# ---- plugin_meta -----------------------------------------------------------------------------------------------------

_F32 = {"dtype": "float32", "format": "linear"}
_F32_VARIANT = {"inputs": [_F32, _F32], "outputs": [_F32]}

META_EDITS: list[tuple[str, str, Any, str]] = [
    ("newer schema", "schema_version", 2, "schema_version is 2"),
    ("schema as text", "schema_version", "1", "schema_version is '1'"),
    ("no schema", "schema_version", DELETE, "schema_version is None"),
    ("unknown key", "colour", "red", "colour"),
    ("unknown key inside", "inputs.0.layout", "NCHW", "$.inputs[0]"),
    ("missing key", "launcher", DELETE, "launcher"),
    ("version as number", "plugin_version", 1, "$.plugin_version"),
    ("name no identifier", "plugin_name", "Dw-Conv", "plugin_name"),
    ("name empty", "plugin_name", "", "plugin_name"),
    ("name with newline", "plugin_name", "Dw\nConv", "plugin_name"),
    ("namespace with slash", "plugin_namespace", "yasp/model", "plugin_namespace"),
    ("version with quote", "plugin_version", '1"', "plugin_version"),
    ("unknown target", "deployment_target", "gpu", "$.deployment_target"),
    ("no inputs", "inputs", [], "inputs"),
    ("no outputs", "outputs", [], "outputs"),
    ("rank 9", "inputs.0.rank", 9, "inputs[0].rank"),
    ("negative rank", "inputs.0.rank", -1, "inputs[0].rank"),
    ("dims do not match rank", "inputs.1.dims", [256, 1, 3], "inputs[1].dims"),
    ("negative dim", "inputs.1.dims", [256, 1, -3, 3], "inputs[1].dims[2]"),
    ("dim as text", "inputs.0.dims", ["n", 256, None, None], "$.inputs[0].dims[0]"),
    ("duplicate tensor name", "outputs.0.name", "x", "outputs[0].name"),
    ("tensor name no identifier", "inputs.0.name", "x.y", "inputs[0].name"),
    ("unknown role", "inputs.1.role", "weights", "$.inputs[1].role"),
    ("too few expressions", "outputs.0.shape", ["in0.d0"], "outputs[0].shape"),
    ("unknown input in a shape", "outputs.0.shape.0", "in2.d0", "outputs[0].shape[0]"),
    ("unknown axis in a shape", "outputs.0.shape.0", "in0.d4", "outputs[0].shape[0]"),
    ("unknown operator", "outputs.0.shape.0", "in0.d0 / 2", "outputs[0].shape[0]"),
    ("power", "outputs.0.shape.0", "in0.d0 ** 2", "outputs[0].shape[0]"),
    ("call in a shape", "outputs.0.shape.0", "__import__('os').system('id')", "outputs[0].shape[0]"),
    ("division by zero", "outputs.0.shape.1", "in0.d1 // 0", "outputs[0].shape[1]"),
    ("negative extent", "outputs.0.shape.1", "in0.d1 - 300", "outputs[0].shape[1]"),
    ("shape as number", "outputs.0.shape.1", 256, "$.outputs[0].shape[1]"),
    ("no variants", "variants", [], "variants"),
    ("variant ids repeat", "variants.1.id", "f32-linear", "variants[1].id"),
    (
        "variant types repeat",
        "variants.1",
        {"id": "b", **_F32_VARIANT},
        "variants[1]: the same types as variant 'f32-linear'",
    ),
    ("variant of wrong arity", "variants.0.inputs", [{"dtype": "float32"}], "variants[0].inputs"),
    ("variant without outputs", "variants.2.outputs", [], "variants[2].outputs"),
    ("unknown dtype", "variants.0.inputs.0.dtype", "float8", "$.variants[0].inputs[0].dtype"),
    ("unknown format", "variants.2.inputs.0.format", "NHWC8", "$.variants[2].inputs[0].format"),
    ("kHWC8 on a CPU", "deployment_target", "cpu", "variants[2]"),
    ("launcher no identifier", "launcher.launch", "a b", "launcher.launch"),
    ("launcher is the entry point", "launcher.launch", "ytk_plugin", "launcher"),
    ("launcher twice", "launcher.workspace", "dwconv", "launcher"),
    ("negative workspace", "launcher.fixed_workspace_bytes", -1, "launcher.fixed_workspace_bytes"),
    ("NaN tolerance", "tolerance.rtol", float("nan"), "tolerance.rtol"),
    ("infinite tolerance", "tolerance.atol", float("inf"), "tolerance.atol"),
    ("negative tolerance", "tolerance.atol", -1.0, "tolerance.atol"),
    ("tolerance of nowhere", "tolerance.source", "", "tolerance.source"),
    ("no digest", "region_digest", "abc", "region_digest"),
    ("upper-case digest", "region_digest", "blake3:" + "A" * 64, "region_digest"),
    (
        "attribute twice",
        "attributes",
        [{"name": "a", "type": "ints"}, {"name": "a", "type": "ints"}],
        "attributes[1].name",
    ),
    ("attribute reserved", "attributes", [{"name": "plugin_version", "type": "string"}], "attributes[0].name"),
    ("attribute of wrong type", "attributes", [{"name": "a", "type": "ints", "value": [1.5]}], "attributes[0].value"),
    ("attribute text for floats", "attributes", [{"name": "a", "type": "floats", "value": "1"}], "attributes[0].value"),
    ("constant axis beyond rank", "constant_axes.0.axis", 4, "constant_axes[0]"),
    ("constant axis of no input", "constant_axes.0.input", 2, "constant_axes[0]"),
    ("constant axis negative", "constant_axes.0.axis", -1, "constant_axes[0]"),
    ("constant axis contradicts dims", "constant_axes.0.extent", 128, "constant_axes[0]"),
    ("range out of order", "extents.0.min", 5, "extents[0]"),
    ("range of a fixed axis", "extents.0.axis", 1, "extents[0]"),
    ("range of no axis", "extents.0.axis", 7, "extents[0]"),
    ("divisor 0", "constraints.divisible", [[0, 1, 0]], "constraints.divisible[0]"),
    ("divisor of no axis", "constraints.divisible", [[0, 9, 8]], "constraints.divisible[0]"),
    ("alignment no power of two", "constraints.alignment_bytes", 48, "constraints.alignment_bytes"),
    ("unknown arch field", "constraints.arch", {"gpu": "orin"}, "constraints.arch"),
    ("flag with a file", "compile_flags", ["-include/etc/passwd"], "compile_flags"),
    ("flag with a plugin", "compile_flags", ["-fplugin=evil.so"], "compile_flags"),
    ("fast math", "compile_flags", ["-ffast-math"], "compile_flags"),
    ("flag with a newline", "compile_flags", ["-O2\n-fplugin=x"], "compile_flags"),
    ("no sites", "sites", 0, "sites"),
]


def meta_cases() -> Iterator[Invalid]:
    file = "plugin_meta/depthwise-f32-f16-khwc8.yaml"
    text = (GOLDEN / file).read_text(encoding="utf-8")
    raw = yaml.safe_load(text)
    for name, path, value, place in META_EDITS:
        edited = _set(raw, path, value)
        # The dumper would write shared lists as aliases, which are refused for their own reason.
        edited = json.loads(json.dumps(edited))
        yield Invalid(file, name, yaml.safe_dump(edited, sort_keys=False).encode(), place)
    yield Invalid(file, "empty", b"", "NoneType")
    yield Invalid(file, "a list", b"- 1\n", "list")
    yield Invalid(file, "truncated", text.encode()[:40], "")
    yield Invalid(file, "not YAML", b"inputs: [unclosed\n", "line")
    yield Invalid(file, "duplicate key", text.encode() + b"sites: 3\n", "'sites' occurs twice")
    yield Invalid(file, "alias bomb", b"a: &a [x, x]\nb: [*a, *a]\n", "aliases")
    yield Invalid(file, "python object", b"schema_version: !!python/object/apply:os.system ['id']\n", "line 1")
    yield Invalid(file, "number as key", b"schema_version: 1\n2: 3\n", "key must be a string")
    yield Invalid(file, "merge key", b"<<: {schema_version: 1}\n", "key must be a string")
    yield Invalid(file, "control character", b"schema_version: \x07\n", "")
    yield Invalid(file, "too large", b"#" * 300_000, "300000")


# ---- kernel bundles --------------------------------------------------------------------------------------------------


def bundle_cases() -> Iterator[Invalid]:
    file = "Fold.module_source.py.txt"
    text = (GOLDEN / file).read_text(encoding="utf-8")
    meta_at = text.index("PLUGIN_META")
    meta = text[meta_at:]
    source = text[text.index("SOURCE =") : meta_at]

    def case(name: str, changed: str | bytes, place: str) -> Invalid:
        return Invalid(file, name, changed if isinstance(changed, bytes) else changed.encode(), place)

    yield case("empty", "", "HEADER is missing")
    yield case("truncated", text[: len(text) // 2], "not Python")
    yield case("no meta", text[:meta_at], "PLUGIN_META is missing")
    yield case("import", "import os\n" + text, "'import os'")
    yield case("call statement", text + "\nprint('hi')\n", "print")
    yield case("docstring", '"""A bundle."""\n' + text, "A bundle")
    yield case("function", text + "\ndef f():\n    pass\n", "def f()")
    yield case("call as value", f'HEADER = open("/etc/passwd").read()\n{source}{meta}', "HEADER is Call")
    yield case("f-string", f'HEADER = f"{{1 + 1}}"\n{source}{meta}', "HEADER is JoinedStr")
    yield case("concatenation", f'HEADER = "a" + "b"\n{source}{meta}', "HEADER is BinOp")
    yield case("format", f'HEADER = "a" % ()\n{source}{meta}', "HEADER is BinOp")
    yield case("bytes", f'HEADER = b"a"\n{source}{meta}', "HEADER is Constant")
    yield case("number", f"HEADER = 1\n{source}{meta}", "HEADER is Constant")
    yield case("name", f"HEADER = SOURCE\n{source}{meta}", "HEADER is Name")
    yield case("annotated", f'HEADER: str = "a"\n{source}{meta}', "not an assignment")
    yield case("walrus", f'(HEADER := "a")\n{source}{meta}', "not an assignment")
    yield case("two targets", f'HEADER = X = "a"\n{source}{meta}', "not an assignment")
    yield case("tuple target", f'HEADER, X = "a", "b"\n{source}{meta}', "not an assignment")
    yield case("another name", text + '\nEXTRA = "x"\n', "EXTRA")
    yield case("augmented", text + '\nSOURCE += "x"\n', "SOURCE += 'x'")
    yield case("twice", text + '\nHEADER = "again"\n', "HEADER is assigned twice")
    yield case("conditional", f'if True:\n    HEADER = "a"\n{source}{meta}', "if True")
    yield case("NUL", text.replace("HEADER = r", 'HEADER = "\0"\nX = r', 1), "not Python")
    yield case("NUL escape", f'HEADER = "\\0"\n{source}{meta}', "HEADER contains a NUL")
    yield case("surrogate", f'HEADER = "\\ud800"\n{source}{meta}', "surrogate")
    yield case("not UTF-8", text.encode() + b"\n# \xff\n", "not UTF-8")
    yield case("UTF-16", text.encode("utf-16"), "not UTF-8")
    yield case("deep nesting", "HEADER = " + "(" * 300 + '"a"' + ")" * 300, "not Python")
    yield case(
        "meta of another schema",
        text.replace("schema_version: 1", "schema_version: 3"),
        "PLUGIN_META: schema_version is 3",
    )
    yield case("meta broken", text.replace("rank: 3", "rank: 12"), "PLUGIN_META: inputs[0].rank")
    yield case("launcher missing", text.replace("fold_launch(", "other("), "'fold_launch' does not occur")


# ---- npz -------------------------------------------------------------------------------------------------------------


def _npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=pickled)
    return stream.getvalue()


def _zip(members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=compression)
    return stream.getvalue()


def npz_cases() -> Iterator[Invalid]:
    file = "model.npz"
    data = (GOLDEN / file).read_bytes()
    good = _npy(np.arange(6, dtype=np.float32))
    yield Invalid(file, "empty", b"", "")
    yield Invalid(file, "not a zip", b"\x93NUMPY" + b"x" * 100, "")
    yield Invalid(file, "truncated at half", data[: len(data) // 2], "")
    yield Invalid(file, "truncated by one byte", data[:-1], "")
    yield Invalid(file, "compressed", _zip([("a.npy", good)], zipfile.ZIP_DEFLATED), "'a.npy' is compressed")
    yield Invalid(
        file, "pickled objects", _zip([("a.npy", _npy(np.array([{}, None], object), pickled=True))]), "'a.npy'"
    )
    yield Invalid(file, "structured", _zip([("a.npy", _npy(np.zeros(3, [("x", "f4")])))]), "'a.npy'")
    yield Invalid(file, "text array", _zip([("a.npy", _npy(np.array(["abc"])))]), "'a.npy'")
    yield Invalid(file, "column-major", _zip([("a.npy", _npy(np.asfortranarray(np.ones((3, 4)))))]), "column-major")
    yield Invalid(file, "big-endian", _zip([("a.npy", _npy(np.ones(3, ">f4")))]), "big-endian")
    yield Invalid(file, "no npy", _zip([("a.txt", b"hello")]), "'a.txt'")
    yield Invalid(
        file,
        "npy header garbage",
        _zip([("a.npy", b"\x93NUMPY\x01\x00\x10\x00garbage........" + b"x" * 50)]),
        "'a.npy'",
    )
    code = b"\x93NUMPY\x01\x00" + struct.pack("<H", 40) + b"__import__('os').system('id')".ljust(39) + b"\n"
    yield Invalid(file, "npy header with code", _zip([("a.npy", code)]), "'a.npy'")
    yield Invalid(file, "npy too short", _zip([("a.npy", good[:-4])]), "needs 24")
    yield Invalid(file, "npy too long", _zip([("a.npy", good + b"tail")]), "needs 24")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile warns of what we want
        duplicate = _zip([("a.npy", good), ("a.npy", good)])
    yield Invalid(file, "duplicate", duplicate, "'a' occurs twice")
    # The directory points two names at one place: readers of different makes would see different files.
    overlapping = _zip([("a.npy", good), ("b.npy", good)])
    entry = overlapping.rindex(b"PK\x01\x02")
    yield Invalid(
        file, "overlapping", overlapping[: entry + 42] + struct.pack("<I", 0) + overlapping[entry + 46 :], "'b'"
    )
    sizes = bytearray(_zip([("a.npy", good)]))
    entry = sizes.rindex(b"PK\x01\x02")
    sizes[entry + 20 : entry + 28] = struct.pack("<II", 10**6, 10**6)
    yield Invalid(file, "sizes beyond the file", bytes(sizes), "truncated")


def reference_cases() -> Iterator[Invalid]:
    file = "model.reference.npz"
    with np.load(GOLDEN / file, allow_pickle=False) as archive:
        golden = dict(archive.items())
    header = json.loads(golden["__ytk__"].tobytes())

    def build(arrays: dict[str, np.ndarray], head: Any = None) -> bytes:
        text = json.dumps(head if head is not None else header).encode()
        members = {**arrays, "__ytk__": np.frombuffer(text, np.uint8)}
        return _zip([(f"{name}.npy", _npy(array)) for name, array in members.items()])

    def without(name: str) -> dict[str, np.ndarray]:
        return {key: value for key, value in golden.items() if key != name}

    yield Invalid(file, "a weights file", (GOLDEN / "model.npz").read_bytes(), "__ytk__")
    yield Invalid(file, "truncated", (GOLDEN / file).read_bytes()[:700], "")
    yield Invalid(file, "corrupted data", _flip(GOLDEN / file), "")
    yield Invalid(file, "missing array", build(without("sample1/out0")), "sample1/out0")
    yield Invalid(file, "unknown array", build({**golden, "extra": np.zeros(1)}), "'extra'")
    yield Invalid(
        file, "wrong dtype", build({**golden, "sample0/in0": golden["sample0/in0"].astype(np.float64)}), "'image'"
    )
    yield Invalid(file, "wrong rank", build({**golden, "sample0/in0": golden["sample0/in0"][0]}), "'image'")
    yield Invalid(file, "wrong extent", build({**golden, "sample0/in0": golden["sample0/in0"][:, :2]}), "'image'")
    for name, path, value, place in (
        ("newer schema", "schema_version", 2, "schema_version is 2"),
        ("unknown key", "colour", 1, "colour"),
        ("no samples", "samples", 0, "0 samples"),
        ("more samples than arrays", "samples", 10**9, "samples"),
        ("unknown dtype", "inputs.0.dtype", "float8", "$.inputs[0].dtype"),
        ("duplicate names", "inputs.1.name", "image", "'image' occurs twice"),
        ("no outputs", "outputs", [], "outputs"),
        ("benchmark of text", "torch_benchmark.mean_ms", "fast", "$.torch_benchmark.mean_ms"),
    ):
        yield Invalid(file, name, build(golden, _set(header, path, value)), place)
    yield Invalid(file, "header not JSON", _zip([("__ytk__.npy", _npy(np.frombuffer(b"{", np.uint8)))]), "__ytk__")
    yield Invalid(file, "header of floats", _zip([("__ytk__.npy", _npy(np.zeros(4)))]), "__ytk__")


def _flip(path: Path) -> bytes:
    """Change one byte of array data, which only the checksum can tell."""
    data = bytearray(path.read_bytes())
    with np.load(path) as archive:
        needle = archive["sample0/in0"].tobytes()
    data[data.index(needle)] ^= 0xFF
    return bytes(data)


# ---- engine bundles --------------------------------------------------------------------------------------------------


def _tgz(members: list[tuple[tarfile.TarInfo, bytes]], level: int = 0) -> bytes:
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=level, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def info(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, len(data)
    return member, data


def golden_members() -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(GOLDEN / "engine.tgz") as archive:
        return [info(member.name, archive.extractfile(member).read()) for member in archive.getmembers()]


def _edited_manifest(edit: Callable[[Any], Any]) -> bytes:
    members = golden_members()
    text = json.dumps(edit(json.loads(members[0][1]))).encode()
    return _tgz([info("manifest.json", text), *members[1:]])


def engine_cases() -> Iterator[Invalid]:
    file = "engine.tgz"
    data = (GOLDEN / file).read_bytes()
    members = golden_members()

    def case(name: str, changed: bytes, place: str) -> Invalid:
        return Invalid(file, name, changed, place)

    yield case("empty", b"", "")
    yield case("not gzip", b"PK\x03\x04" + b"x" * 1000, "")
    yield case("gzip of text", gzip.compress(b"hello"), "")
    yield case("gzip of nothing", gzip.compress(b""), "empty")
    yield case("no members", _tgz([]), "empty")
    yield case("truncated", data[: len(data) // 2], "")
    yield case("truncated in the trailer", data[:-4], "")
    yield case("member missing", _tgz(members[:-1]), "'engine/model.blob'")
    yield case("manifest not first", _tgz([members[1], members[0], *members[2:]]), "the first member is 'profile.json'")
    yield case("no manifest", _tgz(members[1:]), "not manifest.json")
    yield case("manifest not JSON", _tgz([info("manifest.json", b"{"), *members[1:]]), "manifest.json: not JSON")
    evil = [
        ("absolute path", info("/tmp/evil", b"x"), "'/tmp/evil' is refused: absolute"),
        ("dot dot", info("../evil", b"x"), "'../evil' is refused: '..'"),
        ("dot dot inside", info("engine/../../evil", b"x"), "'..'"),
        ("backslash", info("engine\\evil", b"x"), "backslash"),
        ("not normal", info("engine//evil", b"x"), "normal form"),
        ("dot", info("./evil", b"x"), "normal form"),
        ("control character", info("evil\nname", b"x"), "control character"),
        ("symbolic link", info("engine/link", kind=tarfile.SYMTYPE, link="/etc/passwd"), "symbolic link"),
        ("hard link", info("engine/link", kind=tarfile.LNKTYPE, link="manifest.json"), "hard link"),
        ("character device", info("engine/null", kind=tarfile.CHRTYPE), "character device"),
        ("block device", info("engine/sda", kind=tarfile.BLKTYPE), "block device"),
        ("pipe", info("engine/pipe", kind=tarfile.FIFOTYPE), "pipe"),
        ("contiguous file", info("engine/cont", b"x", kind=tarfile.CONTTYPE), "member type"),
        ("unlisted", info("engine/extra", b"x"), "'engine/extra' is not in the manifest"),
        ("duplicate", info("profile.json", b"x"), "'profile.json' occurs twice"),
        ("second manifest", info("manifest.json", b"{}"), "'manifest.json' occurs twice"),
    ]
    for name, member, place in evil:
        yield case(name, _tgz([*members, member]), place)
    yield case("link before its use", _tgz([members[0], evil[7][1], info("engine/link/x", b"y")]), "symbolic link")
    sparse, content = info("engine/sparse", b"x" * 512)
    sparse.pax_headers = {"GNU.sparse.map": "0,512", "GNU.sparse.size": str(2**40)}
    yield case("sparse", _tgz([*members, (sparse, content)]), "sparse")
    bomb, content = info("engine/x", b"x")
    bomb.pax_headers = {"comment": "A" * 1_000_000}
    yield case("header bomb", _tgz([*members, (bomb, content)]), "bytes of headers")
    zeros = bytes(64 * 1024 * 1024)
    manifest = json.loads(members[0][1])
    manifest["files"].append({"name": "engine/zeros", "digest": digest_bytes(zeros), "size_bytes": len(zeros)})
    listed = [info("manifest.json", json.dumps(manifest).encode()), *members[1:], info("engine/zeros", zeros)]
    yield case("compression bomb", _tgz(listed, level=9), "times its size")
    tail = gzip.compress(gzip.decompress(data) + b"hidden", compresslevel=0)
    yield case("data after the archive", tail, "data after the last member")
    changed = [(i, b"tampered") if i.name == "build.log" else (i, d) for i, d in members]
    yield case("changed data", _tgz([info(i.name, d) for i, d in changed]), "'build.log'")
    same_size = [info(i.name, d.replace(b"compiled", b"COMPILED") if i.name == "build.log" else d) for i, d in members]
    yield case("changed data of the same size", _tgz(same_size), "'build.log' does not have the digest")
    edits: list[tuple[str, str, Any, str]] = [
        ("newer schema", "schema_version", 9, "schema_version is 9"),
        ("unknown key", "colour", 1, "colour"),
        ("bad arch", "arch_spec", "amd64-cpuv3-linux", "arch spec"),
        ("engine does not match arch", "engine_name", "tensorrt", "engine_name"),
        ("bad digest", "onnx_digest", "x", "digest"),
        ("plugin not listed", "plugins.0.file", "plugins/Other.so", "plugins/Other.so"),
        ("plugin with another digest", "plugins.0.digest", _DIGEST0, "yasp::Fold"),
        ("file with ..", "files.0.name", "../x", "'..'"),
        ("negative size", "files.0.size_bytes", -1, "negative size"),
        ("size too large", "files.0.size_bytes", 10**15, "bytes"),
        ("conditions of another kind", "conditions.stable", "no", "$.conditions.stable"),
    ]
    for name, path, value, place in edits:
        yield case(name, _edited_manifest(lambda raw, path=path, value=value: _set(raw, path, value)), place)
    twice = lambda raw: {**raw, "files": [*raw["files"], raw["files"][0]]}  # noqa: E731  # one expression
    yield case("file listed twice", _edited_manifest(twice), "occurs twice")
    plugins = lambda raw: {**raw, "plugins": raw["plugins"] * 2}  # noqa: E731  # one expression
    yield case("plugin listed twice", _edited_manifest(plugins), "two plugins")


def all_cases() -> list[Invalid]:
    makers = (json_cases, meta_cases, bundle_cases, npz_cases, reference_cases, engine_cases)
    return [case for make in makers for case in make()]
