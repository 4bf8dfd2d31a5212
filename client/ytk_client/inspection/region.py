"""Regions (``.pt2``): read from the zip, without torch, which executes code when it loads one."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, dims_text, ordered
from ytk_client.inspection.request import Request
from ytk_core.errors import FormatError
from ytk_core.formats.region import RegionSpec, read_region_spec

_VERSION_FILES = ("archive_version", "version", "byteorder")
_MAX_TEXT = 256


def is_exported_program(names: Sequence[str]) -> bool:
    """Tell whether a zip's members are those of a torch.export file, carved by us or not."""
    last = {name.rpartition("/")[2] for name in names}
    return "archive_version" in last or any(name.rpartition("/")[0].endswith("models") for name in names)


def inspect_region(path: Path, names: Sequence[str], request: Request) -> Inspection:
    """Say what a region takes and gives.

    Raises:
        FormatError: It is a zip of another kind, or damaged.
    """
    spec = read_region_spec(path)
    if spec is not None:
        return _carved(path, spec, names, request)
    if is_exported_program(names):
        return _foreign(path, names)
    members = ", ".join(sorted(names)[:5]) or "none"
    raise FormatError(
        f"{path}: a zip, but neither an .npz nor a region that `prepare` carved (members: {members})",
        code="unknown_file",
        hint="Regions are the plugin_candidates/<Name>.pt2 of `ytk embedded prepare`.",
    )


def _carved(path: Path, spec: RegionSpec, names: Sequence[str], request: Request) -> Inspection:
    rows: tuple[tuple[object, ...], ...] = tuple(
        (side, tensor.name, tensor.dtype, _dims(tensor.shape, tensor.dynamic_axes), tensor.role)
        for side, tensors in (("in", spec.inputs), ("out", spec.outputs))
        for tensor in tensors
    )
    return Inspection(
        kind="region",
        content={"spec": spec, "archive": archive_facts(path, names)},
        fields=(
            ("region", f"{spec.namespace}::{spec.name} version {spec.version}"),
            ("module", spec.module_path),
            ("sites", spec.sites),
            ("operators", ", ".join(spec.aten_ops)),
            ("torch", spec.torch_version),
            ("digest", spec.digest),
        ),
        tables=(Table(title="Tensors", columns=("", "NAME", "DTYPE", "SHAPE", "ROLE"), rows=rows),),
        findings=ordered(_findings(spec, request)),
        target=request.profile.name,
    )


def _dims(shape: Sequence[int], dynamic: Sequence[int]) -> str:
    return dims_text([f"{extent}*" if axis in dynamic else extent for axis, extent in enumerate(shape)])


def _findings(spec: RegionSpec, request: Request) -> list[Finding]:
    """Hold the border of a region against what the target hands to a plugin."""
    found = []
    profile = request.profile
    for tensor in (*spec.inputs, *spec.outputs):
        if profile.max_rank is not None and len(tensor.shape) > profile.max_rank:
            found.append(
                Finding(
                    kind="rank",
                    severity=Severity.ERROR,
                    node=tensor.name,
                    message=f"has rank {len(tensor.shape)}; {profile.name} hands plugins tensors up to rank {profile.max_rank}",
                    fix="Carve a larger region, whose border has lower ranks (`--plugin ...:around`).",
                    rule_id="max-rank",
                    source=profile.source,
                )
            )
        if profile.narrowed.get(tensor.dtype, tensor.dtype) not in profile.dtypes:
            found.append(
                Finding(
                    kind="dtype",
                    severity=Severity.ERROR,
                    node=tensor.name,
                    message=f"has element type {tensor.dtype}, which {profile.name} does not have",
                    fix="Cast inside of the region, so that its border has an element type of the target.",
                    rule_id="dtypes",
                    source=profile.source,
                )
            )
    if profile.is_builtin(spec.name) and profile.engine == "tensorrt":
        found.append(
            Finding(
                kind="builtin-name",
                severity=Severity.ERROR,
                node=f"{spec.namespace}::{spec.name}",
                message=f"{spec.name} is a name that {profile.name}'s own importer takes first, silently",
                fix="Prepare the model again with another plugin name.",
                rule_id="builtin-name",
                source=profile.source,
            )
        )
    return found


def _foreign(path: Path, names: Sequence[str]) -> Inspection:
    """Describe an exported program that prepare did not carve: all that can be said without torch."""
    facts = archive_facts(path, names)
    return Inspection(
        kind="exported program",
        content={"archive": facts},
        fields=tuple(facts.items()),
        findings=(
            Finding(
                kind="not-a-region",
                severity=Severity.WARNING,
                message="a torch.export file without a region spec: prepare did not carve it",
                fix="Give the .pt2 of plugin_candidates; `ytk kernelgen compile` takes no other.",
            ),
        ),
    )


def archive_facts(path: Path, names: Sequence[str]) -> dict[str, object]:
    """Give what a ``.pt2``'s small text members say, and its size."""
    facts: dict[str, object] = {"members": len(names)}
    try:
        with zipfile.ZipFile(path) as archive:
            facts["bytes"] = sum(member.file_size for member in archive.infolist())
            for member in archive.infolist():
                word = member.filename.rpartition("/")[2]
                if word in _VERSION_FILES and member.file_size <= _MAX_TEXT:
                    facts[word] = archive.read(member).decode("utf-8", "replace").strip()
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as err:
        raise FormatError(
            f"{path}: no .pt2, or truncated ({err})", hint="Carve the region again with `ytk embedded prepare`."
        ) from err
    return facts
