"""``model.npz``: a stored zip of ``.npy`` members whose data is 64-byte aligned, so that ONNX external data can point into it.

numpy reads it as any other ``.npz``. bfloat16 is stored as uint16; its real dtype is the ONNX initialiser's.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from ytk_core.errors import FormatError, UserError
from ytk_core.files import atomic_write

ALIGNMENT = 64
MAX_MEMBERS = 1_000_000
MAX_NAME_BYTES = 60_000
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ZIP64_EXTRA_BYTES = 20
# Private extra field id of the padding; readers skip ids that they do not know.
_PADDING_ID = 0x5954
_KINDS = frozenset("biuf")
_HINT = "Copy the file again, or make it again with `ytk embedded prepare`."


class Span(msgspec.Struct, frozen=True):
    """Where an array's raw bytes lie in the file, in bytes."""

    offset: int
    length: int


class ArrayEntry(msgspec.Struct, frozen=True):
    """One array of the file: row-major, little-endian, ``dtype`` as numpy names it (bfloat16 is ``uint16``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    span: Span


def _stored(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the array as it is written: row-major, little-endian, bfloat16 as its bits."""
    if array.dtype.name == "bfloat16":  # ml_dtypes, as onnx and torch bridges give it
        array = array.view(np.uint16)
    if array.dtype.kind not in _KINDS:
        msg = f"array {name!r} has dtype {array.dtype}, which cannot be stored"
        raise UserError(msg, code="bad_dtype", hint="Booleans, integers, floats and bfloat16 can be stored.")
    # np.ascontiguousarray would make a 0-d array 1-d.
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _npy_header(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    )
    return stream.getvalue()


def _check_names(names: Mapping[str, Any]) -> None:
    for name in names:
        if not name or "\0" in name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            msg = f"array name {name[:60]!r} cannot be stored"
            raise UserError(msg, code="bad_name", hint="Names are not empty, have no NUL and fewer than 60,000 bytes.")


def write_weights(path: Path | str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Span]:
    """Write arrays in the given order; the same arrays give the same bytes.

    Args:
        path: The file; written to a temporary name and renamed.
        arrays: Name to array of any rank (0-d and empty too), any byte order.

    Returns:
        Per name the offset and length, in bytes, of the raw data: ``location/offset/length`` of ONNX external data.

    Raises:
        UserError: A dtype or name that cannot be stored.
        BoardError: ``disk_full``.
    """
    _check_names(arrays)
    spans: dict[str, Span] = {}
    with atomic_write(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, given in arrays.items():
            array = _stored(name, given)
            header = _npy_header(array)
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            member.create_system = 3
            member.file_size = len(header) + array.nbytes
            # zip64 only where it must be: Python 3.11.4 changed how it writes such a header, and the same arrays shall be the same
            # bytes (and so the same artifact) whichever Python wrote them.
            wide = member.file_size * 1.05 > zipfile.ZIP64_LIMIT
            data_start = stream.tell() + _LOCAL_HEADER.size + len(member.filename.encode()) + 4
            data_start += _ZIP64_EXTRA_BYTES if wide else 0
            padding = -(data_start + len(header)) % ALIGNMENT
            member.extra = struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
            with archive.open(member, "w", force_zip64=wide) as destination:
                destination.write(header)
                # An empty array's view cannot change its item size.
                if array.nbytes:
                    destination.write(array.reshape(-1).view(np.uint8).data)
            spans[name] = Span(data_start + padding + len(header), array.nbytes)
    return spans


def _bad(path: Path | str, message: str) -> FormatError:
    return FormatError(f"{path}: {message}", code="bad_npz", hint=_HINT)


@contextlib.contextmanager
def _opened(path: Path | str) -> Iterator[tuple[IO[bytes], zipfile.ZipFile]]:
    try:
        with Path(path).open("rb") as stream, zipfile.ZipFile(stream) as archive:
            yield stream, archive
    except FileNotFoundError as err:
        msg = f"{path}: no such file (an .npz is expected here)"
        raise FormatError(msg, code="no_such_file", hint="Check the path, or make the file first.") from err
    except IsADirectoryError as err:
        raise _bad(path, "a directory, not an .npz") from err
    except PermissionError as err:
        raise _bad(path, "cannot be read (permission denied)") from err
    except zipfile.BadZipFile as err:
        raise _bad(path, f"not an .npz, or truncated ({err})") from err
    except (EOFError, struct.error, NotImplementedError, UnicodeDecodeError, OSError) as err:
        # OSError: a damaged directory names an offset that cannot be sought to.
        raise _bad(path, f"damaged ({err or type(err).__name__})") from err


def _data_start(stream: IO[bytes], member: zipfile.ZipInfo, path: Path | str) -> int:
    stream.seek(member.header_offset)
    raw = stream.read(_LOCAL_HEADER.size)
    if len(raw) != _LOCAL_HEADER.size or not raw.startswith(b"PK\3\4"):
        raise _bad(path, f"member {member.filename!r} has no header at byte {member.header_offset}")
    fields = _LOCAL_HEADER.unpack(raw)
    return member.header_offset + _LOCAL_HEADER.size + int(fields[9]) + int(fields[10])


def _read_npy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Give shape, fortran order, dtype and the header's length."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        msg = f"npy version {version} is not supported"
        raise ValueError(msg)
    return shape, fortran, dtype, stream.tell()


def _entry(stream: IO[bytes], member: zipfile.ZipInfo, path: Path | str, file_bytes: int) -> ArrayEntry:
    name = member.filename
    if not name.endswith(".npy"):
        raise _bad(path, f"member {name!r} is no .npy")
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 0x1:
        raise _bad(
            path,
            f"member {name!r} is compressed or encrypted; offsets cannot point into it (use numpy.savez, not savez_compressed)",
        )
    start = _data_start(stream, member, path)
    if member.file_size != member.compress_size or start + member.file_size > file_bytes:
        raise _bad(
            path, f"truncated: member {name!r} ends at byte {start + member.file_size}, the file has {file_bytes}"
        )
    stream.seek(start)
    try:
        shape, fortran, dtype, header_bytes = _read_npy_header(stream.read(min(member.file_size, 16384)))
    except (ValueError, SyntaxError, TypeError, struct.error) as err:
        raise _bad(path, f"member {name!r} has no valid .npy header ({err})") from err
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise _bad(path, f"member {name!r} holds {dtype} (pickled or structured data), which is never read")
    if fortran and len(shape) > 1:
        raise _bad(path, f"member {name!r} is column-major; row-major is expected")
    if dtype.byteorder == ">":
        raise _bad(path, f"member {name!r} is big-endian; little-endian is expected")
    if any(extent < 0 for extent in shape):
        raise _bad(path, f"member {name!r} has the shape {shape}")
    length = math.prod(shape) * dtype.itemsize
    if length != member.file_size - header_bytes:
        raise _bad(
            path,
            f"member {name!r} has {member.file_size - header_bytes} bytes of data, its shape {shape} needs {length}",
        )
    return ArrayEntry(name.removesuffix(".npy"), dtype.name, tuple(shape), Span(start + header_bytes, length))


def _index(
    stream: IO[bytes], archive: zipfile.ZipFile, path: Path | str
) -> dict[str, tuple[ArrayEntry, zipfile.ZipInfo]]:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise _bad(path, f"{len(members)} members, more than {MAX_MEMBERS}")
    file_bytes = stream.seek(0, io.SEEK_END)
    found: dict[str, tuple[ArrayEntry, zipfile.ZipInfo]] = {}
    for member in members:
        entry = _entry(stream, member, path, file_bytes)
        if entry.name in found:
            raise _bad(path, f"the array {entry.name!r} occurs twice")
        found[entry.name] = (entry, member)
    end = 0
    for entry, member in sorted(found.values(), key=lambda pair: pair[0].span.offset):
        if member.header_offset < end:
            raise _bad(path, f"the array {entry.name!r} overlaps the one before it")
        end = entry.span.offset + entry.span.length
    return found


def read_index(path: Path | str) -> dict[str, ArrayEntry]:
    """Read names, dtypes, shapes and spans, without the data.

    Raises:
        FormatError: Not an npz, truncated, compressed, pickled, column-major, or with duplicate names.
    """
    with _opened(path) as (stream, archive):
        return {name: entry for name, (entry, _) in _index(stream, archive, path).items()}


def read_arrays(path: Path | str) -> dict[str, np.ndarray[Any, Any]]:
    """Read every array into memory, in file order, checksums verified.

    Raises:
        FormatError: As :func:`read_index`, or a checksum does not match.
    """
    with _opened(path) as (stream, archive):
        return {name: _read(archive, entry, member) for name, (entry, member) in _index(stream, archive, path).items()}


def read_array(path: Path | str, name: str) -> np.ndarray[Any, Any]:
    """Read one array into memory, checksum verified; bfloat16 comes as its bits (uint16).

    Raises:
        FormatError: As :func:`read_index`, or the name does not exist, or the checksum does not match.
    """
    with _opened(path) as (stream, archive):
        found = _index(stream, archive, path)
        if name not in found:
            some = ", ".join(list(found)[:8])
            raise _bad(path, f"no array {name!r}; there are: {some}{', ...' if len(found) > 8 else ''}")
        return _read(archive, *found[name])


def _read(archive: zipfile.ZipFile, entry: ArrayEntry, member: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    with archive.open(member) as source:
        payload = source.read()  # reading to the end makes zipfile check the CRC
    data = np.frombuffer(payload, dtype=entry.dtype, offset=len(payload) - entry.span.length)
    return data.reshape(entry.shape).copy()
