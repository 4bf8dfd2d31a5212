"""Capture a region from what prepare left in ``plugin_candidates``; needs no torch and runs nothing."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import msgspec

from ytk_client.repro.format import Arrays, Kind, Loaded, Repro, Tensor, describe_versions
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.prepare_outputs import Candidate, read_candidates
from ytk_core.formats.region import RegionSpec, read_region_spec
from ytk_core.formats.weights_npz import read_arrays

_SUFFIXES = (".pt2", ".io.npz", ".inputs.pt", ".reference.py")


def region_stem(path: Path) -> Path | None:
    """Give ``plugin_candidates/<Name>`` where a path is that, or one of its files; None where it is not."""
    for suffix in _SUFFIXES:
        if path.name.endswith(suffix):
            path = path.with_name(path.name.removesuffix(suffix))
            break
    return path if path.with_name(path.name + ".pt2").is_file() else None


def names_beside(path: Path) -> list[str]:
    """Give the regions in a folder, for messages."""
    return sorted(file.name.removesuffix(".pt2") for file in path.parent.glob("*.pt2"))


def capture_region(path: Path, *, site: int = 0) -> Loaded:
    """Put a repro of a region together.

    Args:
        path: ``plugin_candidates/<Name>``, or one of its files.
        site: Which occurrence; the tensors and shapes are that one's.

    Raises:
        UserError: No such region or site.
        FormatError: One of its files is damaged.
    """
    stem = region_stem(path)
    if stem is None:
        near = difflib.get_close_matches(path.name, names_beside(path), n=3, cutoff=0.3)
        raise UserError(
            f"{path}: no region of this name (no {path.name}.pt2)",
            code="no_such_region",
            hint=f"There are: {', '.join(near or names_beside(path)) or 'none'}. `ytk embedded prepare` writes them.",
        )
    spec = read_region_spec(stem.with_name(stem.name + ".pt2"))
    if spec is None:
        raise FormatError(f"{stem}.pt2 was not carved by prepare", code="bad_region", hint="Prepare the model again.")
    arrays = read_arrays(stem.with_name(stem.name + ".io.npz"))
    inputs, outputs, kept = _site(stem, spec, arrays, site)
    source = stem.with_name(stem.name + ".reference.py")
    if not source.is_file():
        raise FormatError(f"{source} is missing", code="no_such_file", hint="Prepare the model again.")
    candidate = _candidate(stem, spec)
    return Loaded(
        repro=Repro(
            kind=Kind.REGION,
            name=f"{spec.namespace}::{spec.name}",
            entry="region.py",
            inputs=inputs,
            outputs=outputs,
            attributes={} if candidate is None else candidate.parameters,
            versions=describe_versions({"torch": spec.torch_version}),
            origin=_origin(spec, candidate, site),
        ),
        arrays=kept,
        sources={"region.py": source.read_text(encoding="utf-8")},
    )


def _site(
    stem: Path, spec: RegionSpec, arrays: Arrays, site: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Arrays]:
    sites = len({name.partition("/")[0] for name in arrays})
    if f"site{site}/out0" not in arrays:
        raise UserError(
            f"{stem.name} has {sites} recorded site(s); there is no site {site}",
            code="no_such_site",
            hint=f"Give --site 0 to {sites - 1}.",
        )
    kept: Arrays = {}
    found: dict[str, tuple[Tensor, ...]] = {}
    for side, tensors in (("in", spec.inputs), ("out", spec.outputs)):
        listed = []
        for index, tensor in enumerate(tensors):
            member = f"site{site}/{side}{index}"
            if member not in arrays:
                raise FormatError(f"{stem}.io.npz has no {member}", code="bad_region", hint="Prepare the model again.")
            kept[f"{side}/{tensor.name}"] = arrays[member]
            listed.append(Tensor(name=tensor.name, dtype=tensor.dtype, shape=arrays[member].shape))
        found[side] = tuple(listed)
    return found["in"], found["out"], kept


def _candidate(stem: Path, spec: RegionSpec) -> Candidate | None:
    path = stem.with_name("candidates.json")
    if not path.is_file():
        return None
    name = f"{spec.namespace}::{spec.name}"
    return next((each for each in read_candidates(path) if each.proposed_op == name), None)


def _origin(spec: RegionSpec, candidate: Candidate | None, site: int) -> dict[str, Any]:
    origin: dict[str, Any] = {
        "module_path": spec.module_path,
        "operators": list(spec.aten_ops),
        "region_digest": spec.digest,
        "roles": {tensor.name: str(tensor.role) for tensor in spec.inputs},
        "site": site,
    }
    if candidate is not None:
        origin |= {
            "module_class": candidate.module_class,
            "operator": candidate.aten_op,
            "reason": str(candidate.reason),
            "unsupported_reason": candidate.unsupported_reason,
            "rule": candidate.rule,
            "source_line": without_folder(candidate.source_line),
        }
    plain: dict[str, Any] = msgspec.to_builtins(origin)
    return plain


def without_folder(place: str) -> str:
    """Give ``model.py:3: text`` for ``/home/someone/model.py:3: text``: a repro goes to strangers."""
    head, colon, tail = place.partition(":")
    return Path(head).name + colon + tail
