"""``ytk embedded inspect``: say what a file of the toolkit holds, from its content and not from its name."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import click
from ytk_core.errors import ExitCode, FormatError

from ytk_client.cli.output import JSON, format_option, print_fields, print_json, print_table


class _Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


class _Found(NamedTuple):
    """What a file holds: for JSON the value, for people fields and tables; ``ok`` is the verdict."""

    kind: str
    value: Any
    fields: list[tuple[str, object]]
    tables: list[_Table]
    ok: bool = True


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@format_option()
@click.pass_context
def inspect(context: click.Context, file: Path, output: str) -> None:
    """Show what a file of the toolkit holds.

    Engine bundle (.tgz), plugin (.so with its manifest beside it), kernel bundle (.module_source.py), model (.onnx),
    reference or weights (.npz), region (.pt2). Nothing in the file is executed. Exit code 1 if a plugin's file is not the audited
    one or a check failed.
    """
    found = _look(file)
    if output == JSON:
        print_json({"file": str(file), "kind": found.kind, "ok": found.ok, "content": found.value})
    else:
        print_fields([("file", file), ("kind", found.kind), *found.fields])
        for table in found.tables:
            if table.rows:
                click.echo()
                print_table(table.columns, table.rows, title=table.title)
    if not found.ok:
        context.exit(int(ExitCode.VERDICT))


def _look(file: Path) -> _Found:
    """Recognise a file by its first bytes.

    Raises:
        FormatError: It is of no kind that the toolkit knows, or a broken one of the kind it claims to be.
    """
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic.startswith(b"\x1f\x8b"):
        return _engine(file)
    if magic == b"\x7fELF":
        return _plugin(file)
    if magic.startswith(b"PK"):
        return _zip(file)
    if file.suffix == ".py":
        return _kernel(file)
    if file.suffix == ".onnx":
        return _model(file)
    raise FormatError(
        f"{file}: not a file that the toolkit knows (it begins with {magic!r})",
        hint="Known: engine bundle .tgz, plugin .so, kernel bundle .py, model .onnx, reference or weights .npz, region .pt2.",
    )


def _engine(file: Path) -> _Found:
    from ytk_core.formats.engine_bundle import read_json_member, read_manifest

    manifest = read_manifest(file)
    members = {entry.name for entry in manifest.files}
    value: dict[str, Any] = {"manifest": manifest}
    tables = [
        _Table(
            "Plugins",
            ("PLUGIN", "VERSION", "FILE", "DIGEST"),
            [(f"{p.namespace}::{p.name}", p.version, p.file, p.digest) for p in manifest.plugins],
        ),
        _Table("Files", ("NAME", "BYTES", "DIGEST"), [(f.name, f.size_bytes, f.digest) for f in manifest.files]),
    ]
    for member in ("benchmark.json", "profile.json"):
        if member in members:
            value[member.removesuffix(".json")] = read_json_member(file, member)
    tables += _measured(value)
    fields: list[tuple[str, object]] = [
        ("arch spec", manifest.arch_spec),
        ("engine", f"{manifest.engine_name} {manifest.engine_version}"),
        ("precision", manifest.precision),
        ("device", manifest.device_uid),
        ("onnx", manifest.onnx_digest),
        ("npz", manifest.npz_digest),
        ("flags", ", ".join(f"{key}={item}" for key, item in manifest.flags.items())),
    ]
    if manifest.conditions is not None:
        state = "stable" if manifest.conditions.stable else f"UNSTABLE: {manifest.conditions.reason}"
        fields.append(("measured", state))
    return _Found("engine bundle", value, fields, tables)


def _measured(value: dict[str, Any]) -> list[_Table]:
    """Give tables of benchmark and slowest layers, as far as the members have the fields we know."""
    tables: list[_Table] = []
    row = value.get("benchmark")
    if isinstance(row, dict):
        row = row.get("row", row)
        names = [
            name for name in ("iterations", "min_ms", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms") if name in row
        ]
        if names:
            tables.append(_Table("Benchmark", tuple(names), [tuple(_short(row[name]) for name in names)]))
    layers = value.get("profile")
    if isinstance(layers, dict):
        layers = layers.get("layers")
    if isinstance(layers, list):
        timed = [layer for layer in layers if isinstance(layer, dict) and isinstance(layer.get("ms"), int | float)]
        timed.sort(key=lambda layer: -layer["ms"])
        rows: list[tuple[object, ...]] = [
            (layer.get("name"), layer.get("type"), _short(layer["ms"]), layer.get("exec_type")) for layer in timed[:20]
        ]
        tables.append(_Table(f"Layers ({len(rows)} slowest of {len(layers)})", ("LAYER", "TYPE", "MS", "KERNEL"), rows))
    return tables


def _short(figure: Any) -> object:
    return f"{figure:.4g}" if isinstance(figure, float) else figure


def _contract(meta: Any) -> tuple[list[tuple[str, object]], list[_Table]]:
    """Give the contract of a plugin_meta for people."""
    fields: list[tuple[str, object]] = [
        ("plugin", f"{meta.plugin_namespace}::{meta.plugin_name} version {meta.plugin_version}"),
        ("deployment target", meta.deployment_target),
        ("launcher", meta.launcher.launch),
        ("generator", f"{meta.generator.name} {meta.generator.version}, strategy {meta.generator.strategy}"),
        ("tolerance", f"rtol {meta.tolerance.rtol:g}, atol {meta.tolerance.atol:g} ({meta.tolerance.source})"),
        ("arch", ", ".join(f"{key}={item}" for key, item in meta.constraints.arch.items()) or "any"),
        ("region", meta.region_digest),
    ]
    inputs: list[tuple[object, ...]] = [
        ("in", tensor.name, tensor.rank, "x".join("?" if dim is None else str(dim) for dim in tensor.dims), tensor.role)
        for tensor in meta.inputs
    ]
    outputs: list[tuple[object, ...]] = [
        ("out", tensor.name, tensor.rank, " x ".join(tensor.shape), None) for tensor in meta.outputs
    ]
    variants: list[tuple[object, ...]] = [
        (
            variant.id,
            ", ".join(f"{tensor.dtype} {tensor.format}" for tensor in variant.inputs),
            ", ".join(f"{tensor.dtype} {tensor.format}" for tensor in variant.outputs),
        )
        for variant in meta.variants
    ]
    return fields, [
        _Table("Tensors", ("", "NAME", "RANK", "SHAPE", "ROLE"), inputs + outputs),
        _Table("Variants", ("VARIANT", "INPUTS", "OUTPUTS"), variants),
    ]


def _plugin(file: Path) -> _Found:
    from ytk_core.digests import digest_file
    from ytk_core.formats.plugin_manifest import read_plugin_manifest

    from ytk_client.plugins import manifest_path

    beside = manifest_path(file)
    if not beside.is_file():
        raise FormatError(
            f"{file}: no manifest beside it ({beside.name} is missing)",
            code="no_manifest",
            hint="`ytk embedded build-plugin` writes both; copy the manifest along with the .so.",
        )
    manifest = read_plugin_manifest(beside)
    same = digest_file(file) == manifest.so_digest
    fields, tables = _contract(manifest.meta)
    fields = [
        ("arch spec", manifest.arch_spec),
        ("toolchain", manifest.toolchain),
        ("this file", "the audited one" if same else f"NOT the audited one ({manifest.so_digest})"),
        *fields,
    ]
    checks: list[tuple[object, ...]] = [
        (check.name, "ok" if check.ok else "FAILED", check.found, check.wanted, check.fix or None)
        for check in manifest.checks
    ]
    tables.append(_Table("Checks", ("CHECK", "RESULT", "FOUND", "WANTED", "FIX"), checks))
    value = {"manifest": manifest, "matches_manifest": same}
    return _Found("plugin", value, fields, tables, ok=same and manifest.ok)


def _kernel(file: Path) -> _Found:
    from ytk_core.formats.kernel_bundle import bundle_digest, read_bundle

    bundle = read_bundle(file)
    fields, tables = _contract(bundle.meta)
    lines = len(bundle.source.splitlines()) + len(bundle.header.splitlines())
    fields += [("source", f"{lines} lines"), ("digest", bundle_digest(bundle))]
    return _Found("kernel bundle", {"meta": bundle.meta, "digest": bundle_digest(bundle)}, fields, tables)


def _model(file: Path) -> _Found:
    from ytk_core.preflight import node_contracts_from_onnx

    nodes = node_contracts_from_onnx(file)

    def side(tensors: Any) -> str:
        return ", ".join(
            f"{tensor.dtype or '?'} {'x'.join('?' if dim is None else str(dim) for dim in tensor.dims or ()) or '?'}"
            for tensor in tensors
        )

    rows: list[tuple[object, ...]] = [
        (f"{node.namespace}::{node.name}", node.version, node.node_name, side(node.inputs), side(node.outputs))
        for node in nodes
    ]
    value = [
        {"placeholder": f"{node.namespace}::{node.name}", "version": node.version, "node": node.node_name}
        for node in nodes
    ]
    table = _Table("Nodes that need a plugin", ("PLACEHOLDER", "VERSION", "NODE", "INPUTS", "OUTPUTS"), rows)
    return _Found("model", {"custom_nodes": value}, [("custom nodes", len(rows))], [table])


def _zip(file: Path) -> _Found:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as err:
        raise FormatError(
            f"{file}: a damaged or truncated .npz or .pt2 ({err})", code="bad_npz", hint="Make or copy the file again."
        ) from err
    if not all(name.endswith(".npy") for name in names):
        return _region(file)
    return _reference(file) if "__ytk__.npy" in names else _weights(file)


def _region(file: Path) -> _Found:
    from ytk_core.formats.region import read_region_spec

    spec = read_region_spec(file)
    if spec is None:
        raise FormatError(
            f"{file}: a zip, but neither an .npz nor a region that `prepare` carved",
            hint="Regions are the plugin_candidates/<Name>.pt2 of `ytk embedded prepare`.",
        )
    rows: list[tuple[object, ...]] = [
        (side, tensor.name, tensor.dtype, "x".join(map(str, tensor.shape)), tensor.role)
        for side, tensors in (("in", spec.inputs), ("out", spec.outputs))
        for tensor in tensors
    ]
    fields: list[tuple[str, object]] = [
        ("region", f"{spec.namespace}::{spec.name} version {spec.version}"),
        ("module", spec.module_path),
        ("sites", spec.sites),
        ("operators", ", ".join(spec.aten_ops)),
        ("torch", spec.torch_version),
        ("digest", spec.digest),
    ]
    return _Found("region", spec, fields, [_Table("Tensors", ("", "NAME", "DTYPE", "SHAPE", "ROLE"), rows)])


def _reference(file: Path) -> _Found:
    from ytk_core.formats.reference import read_reference

    reference = read_reference(file)
    rows: list[tuple[object, ...]] = [
        (side, info.name, info.dtype, "x".join("?" if dim is None else str(dim) for dim in info.shape) or "scalar")
        for side, infos in (("in", reference.inputs), ("out", reference.outputs))
        for info in infos
    ]
    torch_row = reference.torch_benchmark
    fields: list[tuple[str, object]] = [
        ("samples", len(reference.samples)),
        ("torch time", None if torch_row is None else f"{torch_row.p50_ms:.3f} ms p50 ({torch_row.name})"),
    ]
    value = {
        "inputs": reference.inputs,
        "outputs": reference.outputs,
        "samples": len(reference.samples),
        "torch_benchmark": torch_row,
        "info": reference.info,
    }
    return _Found("reference", value, fields, [_Table("Tensors", ("", "NAME", "DTYPE", "SHAPE"), rows)])


def _weights(file: Path) -> _Found:
    from ytk_core.formats.weights_npz import read_index

    index = read_index(file)
    rows: list[tuple[object, ...]] = [
        (name, entry.dtype, "x".join(map(str, entry.shape)) or "scalar") for name, entry in index.items()
    ]
    value = [{"name": name, "dtype": str(entry.dtype), "shape": list(entry.shape)} for name, entry in index.items()]
    return _Found("weights", value, [("arrays", len(rows))], [_Table("Arrays", ("NAME", "DTYPE", "SHAPE"), rows)])
