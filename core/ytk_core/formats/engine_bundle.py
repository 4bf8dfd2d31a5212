"""Engine bundles (``.tgz``): ``manifest.json`` and the measurements first, then plugins and the engine.

The archive is deterministic (sorted members, no times, no owners) and its gzip level is 0: weights do not compress, and level 0
is thirteen times as fast. Extraction trusts nothing: see :func:`extract_engine_bundle`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec
from blake3 import blake3

from ytk_core.archspec import ArchSpec
from ytk_core.conditions import Conditions
from ytk_core.digests import PREFIX, check_digest, digest_file
from ytk_core.errors import FormatError, UserError
from ytk_core.files import atomic_dir, atomic_write
from ytk_core.formats import codec
from ytk_core.formats.benchmark import BenchmarkRow, LayerTime
from ytk_core.formats.plugin_manifest import MARK

__all__ = [
    "BenchmarkRow",
    "EngineManifest",
    "FileEntry",
    "LayerTime",
    "Limits",
    "PluginEntry",
    "check_engine_bundle",
    "extract_engine_bundle",
    "member_path",
    "read_json_member",
    "read_manifest",
    "write_engine_bundle",
]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
# What a reader wants without unpacking gigabytes comes first, in this order.
_FIRST = ("profile.json", "layers.json", "benchmark.json", "build.log")
_CHUNK = 1024 * 1024
_MAX_NAME = 512
# All headers between two members, pax records included; ours have none.
_HEADER_BUDGET = 64 * 1024
_HINT = "Copy the bundle again, or build it again with `ytk embedded compile`."


class PluginEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A plugin inside the bundle; ``file`` is its member name.

    ``signed_by``: id of the trusted key whose signature the worker checked before it loaded the plugin; absent where the
    worker loads unsigned plugins too and this was one. ``target_verified``: False where the plugin's manifest says that it is
    not; absent otherwise.
    """

    file: str
    digest: str
    namespace: str
    name: str
    version: str
    signed_by: str | msgspec.UnsetType = msgspec.UNSET
    target_verified: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def mark(self) -> str:
        """What tables add to its name; empty where there is nothing to warn of."""
        return MARK if self.target_verified is False else ""


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A member other than the manifest."""

    name: str
    digest: str
    size_bytes: int


class EngineManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the bundle holds and what really built it. ``files`` is filled in by :func:`write_engine_bundle`."""

    schema_version: int = SCHEMA_VERSION
    arch_spec: str
    engine_name: str
    engine_version: str
    precision: str
    onnx_digest: str
    npz_digest: str | None
    plugins: tuple[PluginEntry, ...] = ()
    flags: dict[str, Any] = {}
    conditions: Conditions | None = None
    device_uid: str = ""
    files: tuple[FileEntry, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What extraction accepts. The ratio is checked once ``ratio_from_bytes`` have come out."""

    max_bytes: int = 16 * 1024**3
    max_files: int = 1000
    max_ratio: float = 20.0
    ratio_from_bytes: int = 16 * 1024**2


def _bad(path: Path | str, message: str) -> FormatError:
    return FormatError(f"{path}: not an engine bundle, or damaged: {message}", code="bad_engine_bundle", hint=_HINT)


def member_path(name: str) -> str | None:
    """Say why a member name is refused; None if it is acceptable."""
    if not name or len(name) > _MAX_NAME:
        return "empty or too long"
    if name.startswith("/"):
        return "absolute path"
    if "\\" in name or any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in name):
        return "backslash, control character or broken encoding"
    if ".." in PurePosixPath(name).parts:
        return "'..' in the path"
    if str(PurePosixPath(name)) != name:
        return "not in its normal form"
    return None


# ---- writing ---------------------------------------------------------------------------------------------------------


def _member_order(name: str) -> tuple[int, str]:
    if name in _FIRST:
        return _FIRST.index(name), name
    return (len(_FIRST) + (name.startswith("engine/")), name)


def _tar_info(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    return member


def write_engine_bundle(path: Path | str, manifest: EngineManifest, files: Mapping[str, Path]) -> EngineManifest:
    """Write a bundle; the same inputs give the same bytes.

    Args:
        path: The ``.tgz``; written to a temporary name and renamed.
        manifest: Everything but ``files``.
        files: Member name to file, for example ``engine/model.blob``, ``plugins/Col2im.so``, ``profile.json``.

    Returns:
        The manifest as written, with ``files``.

    Raises:
        UserError: A member name or a manifest value is not acceptable, or a plugin's file is missing.
        BoardError: ``disk_full``.
    """
    for name in files:
        if (problem := member_path(name)) is not None or name == MANIFEST:
            msg = f"bundle member {name!r}: {problem or 'is the manifest itself'}"
            raise UserError(msg, code="bad_member_name", hint="Use relative names such as engine/model.blob.")
    order = sorted(files, key=_member_order)
    entries = tuple(FileEntry(name=n, digest=digest_file(files[n]), size_bytes=files[n].stat().st_size) for n in order)
    manifest = msgspec.structs.replace(manifest, files=entries)
    _check_manifest(manifest, str(path))
    text = codec.encode(manifest)
    with (
        atomic_write(path) as stream,
        gzip.GzipFile(filename="", mode="wb", compresslevel=0, fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK) as archive,
    ):
        archive.addfile(_tar_info(MANIFEST, len(text)), io.BytesIO(text))
        for entry in entries:
            with files[entry.name].open("rb") as source:
                archive.addfile(_tar_info(entry.name, entry.size_bytes), source)
    return manifest


def _check_manifest(manifest: EngineManifest, origin: str) -> None:
    try:
        spec = ArchSpec.parse(manifest.arch_spec)
        check_digest(manifest.onnx_digest)
        if manifest.npz_digest is not None:
            check_digest(manifest.npz_digest)
        for digest in (*(plugin.digest for plugin in manifest.plugins), *(file.digest for file in manifest.files)):
            check_digest(digest)
    except UserError as err:
        msg = f"{origin}: {MANIFEST}: {err.message}"
        raise FormatError(msg, code="bad_engine_bundle", hint=_HINT) from err
    if spec.engine_name != manifest.engine_name:
        msg = f"{origin}: {MANIFEST}: engine_name is {manifest.engine_name!r}, the arch spec {spec} says {spec.engine_name!r}"
        raise FormatError(msg, code="bad_engine_bundle", hint=_HINT)
    files: dict[str, FileEntry] = {}
    for entry in manifest.files:
        problem = member_path(entry.name) or ("occurs twice" if entry.name in files else None)
        if problem is not None or entry.size_bytes < 0:
            msg = f"{origin}: {MANIFEST}: file {entry.name!r}: {problem or 'negative size'}"
            raise FormatError(msg, code="bad_engine_bundle", hint=_HINT)
        files[entry.name] = entry
    identities = [(plugin.namespace, plugin.name, plugin.version) for plugin in manifest.plugins]
    if len(set(identities)) != len(identities):
        msg = f"{origin}: {MANIFEST}: two plugins have one namespace, name and version"
        raise FormatError(msg, code="bad_engine_bundle", hint=_HINT)
    for plugin in manifest.plugins:
        if plugin.file not in files or files[plugin.file].digest != plugin.digest:
            msg = f"{origin}: {MANIFEST}: plugin {plugin.namespace}::{plugin.name}: no file {plugin.file!r} with its digest"
            raise FormatError(msg, code="bad_engine_bundle", hint=_HINT)


# ---- reading ---------------------------------------------------------------------------------------------------------


class _CountingFile(io.RawIOBase):
    """Counts the compressed bytes read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.count += len(block)
        return block


class _GuardedReader(io.RawIOBase):
    """The uncompressed stream, with the limits enforced before anything is kept."""

    def __init__(self, stream: IO[bytes], limits: Limits, path: Path | str) -> None:
        self._compressed = _CountingFile(stream)
        self._plain = gzip.GzipFile(fileobj=self._compressed, mode="rb")
        self._limits = limits
        self._path = path
        self.count = 0
        self.budget: int | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._plain.read(size)
        self.count += len(block)
        if self.budget is not None:
            self.budget -= len(block)
            if self.budget < 0:
                raise _bad(self._path, f"more than {_HEADER_BUDGET} bytes of headers for one member")
        if self.count > self._limits.max_bytes:
            raise _bad(self._path, f"more than {self._limits.max_bytes} bytes unpacked")
        if self.count > self._limits.ratio_from_bytes and self.count > self._limits.max_ratio * self._compressed.count:
            ratio = self.count / max(self._compressed.count, 1)
            raise _bad(self._path, f"unpacks to {ratio:.0f} times its size, more than {self._limits.max_ratio:g}")
        return block


def _member_problem(member: tarfile.TarInfo) -> str | None:
    kinds = {
        tarfile.SYMTYPE: "symbolic link",
        tarfile.LNKTYPE: "hard link",
        tarfile.CHRTYPE: "character device",
        tarfile.BLKTYPE: "block device",
        tarfile.FIFOTYPE: "pipe",
    }
    if member.type in kinds:
        return kinds[member.type]
    if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE}:
        return f"member type {member.type!r}"
    if member.sparse is not None:
        return "sparse file"
    return member_path(member.name)


def _drain(path: Path | str, reader: _GuardedReader) -> None:
    """Read to the end, so that gzip checks its checksum; only the zero padding of tar may follow the last member."""
    while block := reader.read(tarfile.RECORDSIZE):
        if block.strip(b"\0"):
            raise _bad(path, "data after the last member")


def _members(path: Path | str, stream: IO[bytes], limits: Limits) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Give each regular member with its data stream; the caller reads it to the end before the next one."""
    reader = _GuardedReader(stream, limits, path)
    reader.budget = _HEADER_BUDGET
    # bufsize of one block: tarfile then reads no data ahead, so the header budget and the end are exact; it costs no speed.
    with tarfile.open(fileobj=reader, mode="r|", bufsize=tarfile.BLOCKSIZE) as archive:
        seen: set[str] = set()
        count = 0
        while True:
            reader.budget = _HEADER_BUDGET
            member = archive.next()
            reader.budget = None
            if member is None:
                _drain(path, reader)
                return
            count += 1
            if count > limits.max_files:
                raise _bad(path, f"more than {limits.max_files} members")
            if (problem := _member_problem(member)) is not None:
                raise _bad(path, f"member {member.name!r} is refused: {problem}")
            if member.name in seen:
                raise _bad(path, f"member {member.name!r} occurs twice")
            seen.add(member.name)
            if member.isdir():
                continue
            if member.size > limits.max_bytes:
                raise _bad(path, f"member {member.name!r} has {member.size} bytes, more than {limits.max_bytes}")
            source = archive.extractfile(member)
            if source is None:
                raise _bad(path, f"member {member.name!r} cannot be read")
            yield member, source


@contextlib.contextmanager
def _reading(path: Path | str) -> Iterator[IO[bytes]]:
    try:
        with Path(path).open("rb") as stream:
            yield stream
    except FileNotFoundError as err:
        if err.filename is None or Path(err.filename) != Path(path):
            raise
        msg = f"{path}: no such file (an engine bundle is expected here)"
        raise FormatError(
            msg, code="no_such_file", hint="Check the path, or build it with `ytk embedded compile`."
        ) from err
    except IsADirectoryError as err:
        raise _bad(path, "it is a directory") from err
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as err:
        raise _bad(path, f"{err or type(err).__name__}") from err


def _read_whole(path: Path | str, member: tarfile.TarInfo, source: IO[bytes], limit: int) -> bytes:
    if member.size > limit:
        raise _bad(path, f"member {member.name!r} has {member.size} bytes, more than {limit}")
    text = source.read()
    if len(text) != member.size:
        raise _bad(path, f"truncated inside {member.name!r}")
    return text


def _decode_manifest(path: Path | str, member: tarfile.TarInfo, source: IO[bytes]) -> EngineManifest:
    if member.name != MANIFEST:
        raise _bad(path, f"the first member is {member.name!r}, not {MANIFEST}")
    text = _read_whole(path, member, source, 16 * 1024**2)
    origin = f"{path}: {MANIFEST}"
    manifest = codec.decode(text, EngineManifest, origin, schema_version=SCHEMA_VERSION, what="engine manifest")
    _check_manifest(manifest, str(path))
    return manifest


def read_manifest(path: Path | str) -> EngineManifest:
    """Read the manifest, which is the first member; nothing else is read or checked.

    Raises:
        FormatError: Not a bundle, or damaged before the manifest's end.
    """
    with _reading(path) as stream:
        for member, source in _members(path, stream, Limits()):
            return _decode_manifest(path, member, source)
        raise _bad(path, "it is empty")


def read_json_member(path: Path | str, name: str) -> Any:
    """Read one JSON member (``profile.json``, ``layers.json``, ``benchmark.json``), verified against the manifest.

    Raises:
        FormatError: Not a bundle, no such member, or not the JSON that the manifest lists.
    """
    with _reading(path) as stream:
        members = _members(path, stream, Limits())
        first = next(members, None)
        if first is None:
            raise _bad(path, "it is empty")
        entries = {entry.name: entry for entry in _decode_manifest(path, *first).files}
        if name not in entries:
            raise _bad(path, f"no member {name!r}; there are: {', '.join(entries) or 'none'}")
        for member, source in members:
            if member.name == name:
                text = _read_whole(path, member, source, codec.MAX_JSON_BYTES)
                if PREFIX + blake3(text).hexdigest() != entries[name].digest:
                    raise _bad(path, f"member {name!r} does not have the digest in the manifest")
                return codec.parse_json(text, f"{path}: {name}")
        raise _bad(path, f"member {name!r} of the manifest is missing")


def check_engine_bundle(path: Path | str, limits: Limits | None = None) -> EngineManifest:
    """Read a whole bundle and hold every member against the manifest, without writing anything.

    Args:
        path: The ``.tgz``.
        limits: What is accepted, as in :func:`extract_engine_bundle`.

    Raises:
        FormatError: Whatever :func:`extract_engine_bundle` refuses; the message names the member.
    """
    with _reading(path) as stream:
        members = _members(path, stream, limits or Limits())
        first = next(members, None)
        if first is None:
            raise _bad(path, "it is empty")
        manifest = _decode_manifest(path, *first)
        missing = {entry.name: entry for entry in manifest.files}
        for member, source in members:
            entry = missing.pop(member.name, None)
            if entry is None:
                raise _bad(path, f"member {member.name!r} is not in the manifest")
            _copy_checked(path, entry, source, None)
        if missing:
            raise _bad(path, f"truncated: member {next(iter(missing))!r} of the manifest is missing")
    return manifest


def _extract_member(path: Path | str, entry: FileEntry, source: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as out:
        _copy_checked(path, entry, source, out)


def _copy_checked(path: Path | str, entry: FileEntry, source: IO[bytes], out: IO[bytes] | None) -> None:
    hasher = blake3()
    size = 0
    while block := source.read(_CHUNK):
        hasher.update(block)
        size += len(block)
        if out is not None:
            out.write(block)
    if size != entry.size_bytes:
        raise _bad(path, f"member {entry.name!r} has {size} bytes, the manifest says {entry.size_bytes}")
    if PREFIX + hasher.hexdigest() != entry.digest:
        raise _bad(path, f"member {entry.name!r} does not have the digest in the manifest")


def extract_engine_bundle(path: Path | str, dest: Path | str, limits: Limits | None = None) -> EngineManifest:
    """Extract into a directory that does not exist yet or is empty; on failure nothing is left.

    Refused: absolute paths, ``..``, links, devices, pipes, sparse files, duplicate or unlisted members, a digest or size other than
    the manifest's, more bytes, files or ratio than the limits, and truncation.

    Args:
        path: The ``.tgz``.
        dest: The directory; its parent must exist.
        limits: What is accepted; the defaults suit engines up to 16 GiB.

    Raises:
        FormatError: The bundle is refused; the message names the member.
        UserError: ``dest`` is not empty.
        BoardError: ``disk_full``.
    """
    dest = Path(dest)
    if dest.is_dir() and any(dest.iterdir()):
        msg = f"cannot extract into {dest}: it is not empty"
        raise UserError(msg, code="bad_output_path", hint="Choose a new directory.")
    with _reading(path) as stream, atomic_dir(dest) as temporary:
        members = _members(path, stream, limits or Limits())
        first = next(members, None)
        if first is None:
            raise _bad(path, "it is empty")
        manifest = _decode_manifest(path, *first)
        missing = {entry.name: entry for entry in manifest.files}
        free = shutil.disk_usage(dest.parent).free
        if (needed := sum(entry.size_bytes for entry in manifest.files)) > (limits or Limits()).max_bytes:
            raise _bad(path, f"the manifest lists {needed} bytes, more than {(limits or Limits()).max_bytes}")
        if needed > free:
            raise OSError(28, f"{needed} bytes needed, {free} free", str(dest))
        (temporary / MANIFEST).write_bytes(codec.encode(manifest))
        for member, source in members:
            entry = missing.pop(member.name, None)
            if entry is None:
                raise _bad(path, f"member {member.name!r} is not in the manifest")
            _extract_member(path, entry, source, temporary / member.name)
        if missing:
            raise _bad(path, f"truncated: member {next(iter(missing))!r} of the manifest is missing")
    return manifest
