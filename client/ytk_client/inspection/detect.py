"""Recognise a file by its content, never by its name alone, and hand it to the module of its kind."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from ytk_client.inspection.findings import Inspection
from ytk_client.inspection.request import Request
from ytk_core.errors import FormatError, UserError

_HEAD = 512
_KNOWN = (
    "ytk reads: engine bundle .tgz, plugin .so, kernel bundle .py, model .onnx, reference or weights .npz, region .pt2, "
    "plugins.json, candidates.json, fx_nodes.json, plugin manifest, repro .zip."
)
# What people give by mistake, by its first bytes: what it is, and what to give instead.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"\x80", "a Python pickle (torch.save of an old torch), which is never loaded", "Give the model's .onnx instead."),
    (b"ftrt", "a bare TensorRT plan", "A plan says nothing about itself without TensorRT; give its engine bundle."),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Run `git lfs pull`, then inspect again."),
    (b"<!DOCTYPE", "a web page (a download that failed?)", "Download the file again."),
    (b"<html", "a web page (a download that failed?)", "Download the file again."),
    (b"\x89HDF", "an HDF5 file (Keras, .mat)", "Export the model to ONNX first."),
    (b"BZh", "a bzip2 archive", "An engine bundle is gzip; unpack this one first."),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "An engine bundle is gzip; unpack this one first."),
    (b"!<arch>\n", "a static library", "A plugin is a shared library (.so)."),
)


def inspect_file(path: Path, request: Request) -> Inspection:
    """Say what a file holds and what is wrong with it.

    Args:
        path: An existing file.
        request: The target to judge it for.

    Raises:
        FormatError: It is of no kind that the toolkit knows, or a damaged one of its kind; the message says why.
        UserError: It cannot be read; or a second opinion was asked for about something else than a model.
    """
    found = _inspect(path, request)
    if request.second_opinion and found.kind != "model":
        msg = f"{path} is no ONNX model but a file of kind {found.kind}: a parser has nothing to say about it"
        raise UserError(msg, code="bad_option", hint="Leave out --second-opinion.")
    return found


def _inspect(path: Path, request: Request) -> Inspection:
    if path.is_dir():
        from ytk_client.repro.format import is_repro

        if is_repro(path):
            return _repro(path)
        raise FormatError(f"{path}: a directory", code="unknown_file", hint=f"Give one of the files in it. {_KNOWN}")
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if not head:
        raise FormatError(f"{path}: the file is empty", code="empty_file", hint="Make or copy the file again.")
    for magic, look in _LOOKS:
        if head.startswith(magic):
            return look(path, request)
    for magic, what, instead in _FOREIGN:
        # A pickle and an ONNX model may begin with the same byte; a model has a graph.
        if head.startswith(magic) and not (magic == b"\x80" and path.suffix == ".onnx"):
            raise FormatError(f"{path}: {what}", code="unknown_file", hint=f"{instead} {_KNOWN}")
    if path.suffix == ".onnx":
        return _model(path, request)
    if path.suffix == ".py":
        return _kernel(path, request)
    if head.lstrip()[:1] in {b"{", b"["}:
        return _json(path, request)
    return _guessed(path, request)


def _guessed(path: Path, request: Request) -> Inspection:
    """Try the kinds that have no mark of their own; where none fits, say why for each."""
    reasons = ["no gzip, ELF or zip mark", "no JSON object or list"]
    for name, look in (("ONNX model", _model), ("kernel bundle", _kernel)):
        try:
            return look(path, request)
        except FormatError as err:
            reasons.append(f"no {name} ({err.message.removeprefix(f'{path}: ')})")
    raise FormatError(
        f"{path}: not a file that the toolkit knows: {'; '.join(reasons)}", code="unknown_file", hint=_KNOWN
    )


def _engine(path: Path, request: Request) -> Inspection:
    from ytk_client.inspection.engine import inspect_engine

    return inspect_engine(path, request)


def _plugin(path: Path, request: Request) -> Inspection:
    from ytk_client.inspection.plugin import inspect_plugin

    return inspect_plugin(path, request)


def _kernel(path: Path, request: Request) -> Inspection:
    from ytk_client.inspection.kernel import inspect_kernel

    return inspect_kernel(path, request)


def _model(path: Path, request: Request) -> Inspection:
    from ytk_client.inspection.onnx_model import inspect_model

    return inspect_model(path, request)


def _json(path: Path, request: Request) -> Inspection:
    from ytk_client.inspection.json_files import inspect_json

    return inspect_json(path, request)


def _repro(path: Path) -> Inspection:
    from ytk_client.inspection.repro import inspect_repro

    return inspect_repro(path)


def _zip(path: Path, request: Request) -> Inspection:
    from ytk_client.inspection import arrays, region

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError) as err:
        raise FormatError(
            f"{path}: a damaged or truncated .npz or .pt2 ({err})", code="bad_npz", hint="Make or copy the file again."
        ) from err
    if "repro.json" in names:
        return _repro(path)
    # The weights of a model that stores none in the npz are an empty archive.
    if all(name.endswith(".npy") for name in names) and (names or path.suffix == ".npz"):
        return arrays.inspect_reference(path) if "__ytk__.npy" in names else arrays.inspect_weights(path)
    if any(name.rpartition("/")[2] == "data.pkl" for name in names) and not region.is_exported_program(names):
        raise FormatError(
            f"{path}: a torch.save file (it holds data.pkl), which executes code when loaded and is never read",
            code="unknown_file",
            hint="Give the region's .pt2 or .io.npz, or the model's .onnx.",
        )
    return region.inspect_region(path, names, request)


_LOOKS: tuple[tuple[bytes, Callable[[Path, Request], Inspection]], ...] = (
    (b"\x1f\x8b", _engine),
    (b"\x7fELF", _plugin),
    (b"PK", _zip),
)
