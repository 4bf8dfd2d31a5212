"""What a repro is: ``repro.json``, ``tensors.npz`` and ``source/*.py``, in a directory or a zip."""

from __future__ import annotations

import contextlib
import enum
import errno
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np

from ytk_core.dtypes import DType
from ytk_core.errors import FormatError, UserError
from ytk_core.files import atomic_dir, atomic_write
from ytk_core.formats import codec
from ytk_core.formats.weights_npz import read_arrays, write_weights

SCHEMA_VERSION = 1
HEADER = "repro.json"
TENSORS = "tensors.npz"
SOURCE = "source"
MAX_MEMBERS = 200
MAX_BYTES = 4 * 1024**3
MAX_SOURCE_BYTES = 4 * 1024**2
_HINT = "Capture it again with `ytk embedded capture`, or copy the file again."


class Kind(enum.StrEnum):
    """What was captured."""

    REGION = "region"
    """A region that prepare carved: a function of tensors."""
    MODULE = "module"
    """A module of a model.py, with its state."""


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor of ``tensors.npz``; bfloat16 is stored as its bits."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


class Raised(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The exception that is expected instead of outputs."""

    type: str
    message: str


class Repro(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A repro without its arrays.

    Attributes:
        kind: What was captured.
        name: ``<namespace>::<Name>`` of a region, the path of a module.
        entry: The file below ``source`` that defines it.
        inputs: In the order of the region's inputs; of a module, those its ``call`` refers to.
        outputs: In order; of a module, flattened.
        call: A module's arguments as a tree (see :mod:`ytk_client.repro.tree`); None for a region.
        state: Parameters and buffers of the module, by name; the arrays are ``state/<name>``.
        training: Whether the module was in training mode.
        raised: What the module raised instead of giving outputs.
        exports: Whether torch's ONNX exporter took it; None where that was not tried.
        export_error: The innermost exception of the exporter where it did not.
        attributes: The plain settings of the module or of the carved operator.
        versions: torch, Python and toolkit that captured it.
        origin: Where it comes from: module path, class, source line, reason, rule, operators.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    name: str
    entry: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    call: dict[str, Any] | None = None
    state: tuple[Tensor, ...] = ()
    training: bool = False
    raised: Raised | None = None
    exports: bool | None = None
    export_error: Raised | None = None
    attributes: dict[str, Any] = {}
    versions: dict[str, str] = {}
    origin: dict[str, Any] = {}


Arrays = dict[str, np.ndarray[Any, Any]]


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A repro with everything in it. ``sources``: path below ``source`` to text."""

    repro: Repro
    arrays: Arrays
    sources: dict[str, str]


def _bad(path: Path, why: str) -> FormatError:
    return FormatError(f"{path}: not a repro, or damaged: {why}", code="bad_repro", hint=_HINT)


def expected_arrays(repro: Repro) -> Iterator[tuple[str, Tensor]]:
    """Give the member of ``tensors.npz`` of each tensor."""
    for prefix, tensors in (("in", repro.inputs), ("out", repro.outputs), ("state", repro.state)):
        for tensor in tensors:
            yield f"{prefix}/{tensor.name}", tensor


# ---- writing -------------------------------------------------------------------------------------------------------------


def write_repro(path: Path, loaded: Loaded) -> None:
    """Write a repro: a zip where the name ends in ``.zip``, else a directory.

    Raises:
        UserError: ``bad_output_path``: something is there that is no repro.
        BoardError: ``disk_full``.
    """
    if path.suffix == ".zip":
        with tempfile.TemporaryDirectory(prefix="ytk-repro-") as folder:
            inner = Path(folder) / "repro"
            inner.mkdir()
            _write_files(inner, loaded)
            with atomic_write(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for file in sorted(each for each in inner.rglob("*") if each.is_file()):
                    member = zipfile.ZipInfo(file.relative_to(inner).as_posix(), date_time=(1980, 1, 1, 0, 0, 0))
                    member.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(member, file.read_bytes())
        return
    if path.exists() and not (path / HEADER).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(
            f"{path} exists and is no repro",
            code="bad_output_path",
            hint="Choose a new directory, or a name with .zip.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        shutil.rmtree(path)
    with atomic_dir(path) as folder_path:
        _write_files(folder_path, loaded)


def _write_files(folder: Path, loaded: Loaded) -> None:
    codec.write_json(folder / HEADER, loaded.repro)
    write_weights(folder / TENSORS, loaded.arrays)
    for name, text in loaded.sources.items():
        target = folder / SOURCE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


# ---- reading -------------------------------------------------------------------------------------------------------------


def is_repro(path: Path) -> bool:
    """Tell whether a path is a repro, whole or not."""
    if path.is_dir():
        return (path / HEADER).is_file()
    with contextlib.suppress(zipfile.BadZipFile, OSError, NotImplementedError), zipfile.ZipFile(path) as archive:
        return HEADER in archive.namelist()
    return False


def read_repro(path: Path) -> Loaded:
    """Read and check a repro; nothing in it is executed.

    Raises:
        FormatError: Not a repro, damaged, or hostile (paths that lead out, too much data, arrays that are not those it lists).
    """
    if path.is_dir():
        return _read_folder(path, path)
    with tempfile.TemporaryDirectory(prefix="ytk-repro-") as folder:
        _unpack(path, Path(folder))
        return _read_folder(Path(folder), path)


def _member_problem(name: str) -> str | None:
    parts = PurePosixPath(name).parts
    if name in {HEADER, TENSORS}:
        return None
    if name.startswith("/") or "\\" in name or ".." in parts or "\0" in name:
        return "it leads out of the archive"
    if len(parts) < 2 or parts[0] != SOURCE or not name.endswith(".py"):
        return f"only {HEADER}, {TENSORS} and {SOURCE}/*.py belong into a repro"
    return None


def _unpack(path: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) > MAX_MEMBERS:
                raise _bad(path, f"{len(members)} members, more than {MAX_MEMBERS}")
            if len({member.filename for member in members}) != len(members):
                raise _bad(path, "a member occurs twice")
            left = MAX_BYTES
            for member in members:
                if (problem := _member_problem(member.filename)) is not None:
                    raise _bad(path, f"member {member.filename!r}: {problem}")
                target = folder / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                limit = left if member.filename == TENSORS else MAX_SOURCE_BYTES
                with archive.open(member) as source, target.open("xb") as out:
                    # What the directory of a zip says about sizes may be a lie: what comes out counts.
                    while block := source.read(1024 * 1024):
                        out.write(block)
                        limit -= len(block)
                        left -= len(block)
                        if limit < 0:
                            raise _bad(path, f"member {member.filename!r} is too large")
    except FileNotFoundError as err:
        raise FormatError(f"{path}: no such file", code="no_such_file", hint="Check the path.") from err
    except OSError as err:
        if err.errno != errno.EINVAL:  # a damaged directory names an offset that cannot be sought to
            raise
        raise _bad(path, str(err)) from err
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError, zlib.error) as err:
        raise _bad(path, str(err) or type(err).__name__) from err


def _read_folder(folder: Path, origin: Path) -> Loaded:
    header = folder / HEADER
    if not header.is_file():
        raise _bad(origin, f"{HEADER} is missing")
    text = codec.read_bytes(header, "repro", limit=MAX_SOURCE_BYTES)
    repro = codec.decode(text, Repro, f"{origin}: {HEADER}", schema_version=SCHEMA_VERSION, what="repro")
    arrays = read_arrays(folder / TENSORS)
    for member, tensor in expected_arrays(repro):
        array = arrays.get(member)
        if array is None:
            raise _bad(origin, f"{TENSORS} has no {member!r}")
        stored = np.dtype(np.uint16) if tensor.dtype is DType.BFLOAT16 else np.dtype(str(tensor.dtype))
        if array.shape != tensor.shape or array.dtype != stored:
            raise _bad(
                origin, f"{member!r} is {array.dtype} {array.shape}, {HEADER} says {tensor.dtype} {tensor.shape}"
            )
    if extra := set(arrays) - {member for member, _ in expected_arrays(repro)}:
        raise _bad(origin, f"{TENSORS} has {sorted(extra)[0]!r}, which {HEADER} does not list")
    sources = _read_sources(folder, origin)
    if repro.entry not in sources:
        raise _bad(origin, f"{SOURCE}/{repro.entry} is missing")
    return Loaded(repro=repro, arrays=arrays, sources=sources)


def _read_sources(folder: Path, origin: Path) -> dict[str, str]:
    sources: dict[str, str] = {}
    root = folder / SOURCE
    for file in sorted(root.rglob("*.py")):
        if file.is_symlink() or not file.is_file():
            raise _bad(origin, f"{file.name} is no regular file")
        try:
            sources[file.relative_to(root).as_posix()] = codec.read_bytes(
                file, "source file", limit=MAX_SOURCE_BYTES
            ).decode("utf-8")
        except UnicodeDecodeError as err:
            raise _bad(origin, f"{file.name} is not UTF-8") from err
    return sources


def describe_versions(extra: Mapping[str, str]) -> dict[str, str]:
    """Give the versions of what captures: toolkit, Python, platform, and ``extra``."""
    import importlib.metadata
    import platform

    try:
        own = importlib.metadata.version("yasp-toolkit")
    except importlib.metadata.PackageNotFoundError:
        own = "unknown"
    return {
        "yasp-toolkit": own,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **extra,
    }
