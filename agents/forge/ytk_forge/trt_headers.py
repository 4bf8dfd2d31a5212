"""TensorRT's headers: where they are, which version they are of, and what to do where there are none.

Three places, best first: the SDK path of the toolchain file; a Python package that carries the Apache-2.0 headers of the very
version (TensorRT 10 and later; nothing of the package is imported); and, only where it is asked for, an interface declared by hand.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from pathlib import Path

import msgspec

from ytk_core.digests import digest_bytes
from ytk_core.errors import NotAvailableError
from ytk_forge.toolchain import TensorRTAbi, Toolchain

DECLARED_DIR = Path(__file__).parent / "probe" / "trt_abi"
HEADER = "NvInferRuntime.h"
DECLARED_FLAG = "--declared-abi"
_DECLARED_SINCE = 10


class PackagedHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """A Python package that has TensorRT's headers; ``digest``: of those files that a plugin class includes."""

    version: str
    requirement: str
    module: str
    directory: str
    digest: str


PACKAGED = (
    PackagedHeaders(
        version="10.14",
        requirement="kernel-lens==2.0.1",
        module="kernel_lens",
        directory="include/tensorrt",
        digest="blake3:08f4125c21f3f9f6dcbab2af499cffe1b11ee7320eebf0fa03fac2a250214670",
    ),
)
# What NvInferRuntime.h includes, itself included: a change of any of them is another interface.
_INCLUDED = (
    "NvInferImpl.h",
    "NvInferPluginBase.h",
    "NvInferRuntime.h",
    "NvInferRuntimeBase.h",
    "NvInferRuntimeCommon.h",
    "NvInferRuntimePlugin.h",
    "NvInferVersion.h",
)


class TrtHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """A directory to compile a plugin class against."""

    include_dir: str
    declared: bool
    """By hand, from the documentation: the result is not target-verified."""
    banner: str
    """For manifests and the cache's key."""
    version: str | None = None
    """As the headers say it; None where they do not, or where there are none."""

    def differs_from(self, wanted: str) -> bool:
        """Whether they are of another minor version than a target's: interfaces grow between them."""
        return self.version is not None and self.version.split(".")[:2] != wanted.split(".")[:2]


def find_headers(toolchain: Toolchain, *, declared: bool = False) -> TrtHeaders | None:
    """Give the headers of a toolchain's TensorRT; None where it is for another engine.

    Args:
        toolchain: Says which TensorRT, and where its SDK is.
        declared: Where there are none, take the interface declared by hand: who builds asked for it, and the plugin is marked.
            TensorRT 8.6 has none, since a plugin class of an interface that is nearly its own crashes it.

    Raises:
        NotAvailableError: ``tensorrt_headers_missing``: there are none, and the hint says which key of which toolchain to
            set; ``tensorrt_headers_wrong``: they are of another major version.
    """
    wanted = toolchain.tensorrt
    if wanted is None:
        return None
    where = f"toolchain {toolchain.name}: TensorRT {wanted.version}"
    hint = (
        f"{wanted.install or 'Get the SDK'}. To set it, make a directory with a file sdk.toml of three lines:\n"
        f'  extends = "{toolchain.name}"\n  [tensorrt]\n  include_dir = "/path/to/include"\n'
        "and start Forge with --toolchain-dir DIRECTORY."
    )
    if not wanted.include_dir:
        package = next((each for each in PACKAGED if each.version == wanted.version), None)
        if package is not None:
            if (found := _packaged(package)) is not None:
                return found
            hint = f"pip install --no-deps {package.requirement} (it carries these headers; nothing of it is run).\nOr: {hint}"
        if wanted.major >= _DECLARED_SINCE:
            if declared or wanted.abi is TensorRTAbi.DECLARED:
                return TrtHeaders(
                    include_dir=str(DECLARED_DIR), declared=True, banner="declared interface 1 (no SDK headers)"
                )
            hint += (
                f'\nWithout the headers: `ytk embedded build-plugin {DECLARED_FLAG}`, or abi = "declared" under [tensorrt] for every'
                " build, compiles against an interface declared by hand; the plugin is then marked as not target-verified."
            )
        msg = f"{where}: no headers: tensorrt.include_dir is empty"
        raise NotAvailableError(msg, code="tensorrt_headers_missing", hint=hint)
    include = Path(wanted.include_dir)
    if not (include / HEADER).is_file():
        msg = f"{where}: no {HEADER} in tensorrt.include_dir = {include}"
        raise NotAvailableError(msg, code="tensorrt_headers_missing", hint=hint)
    version = _version(include)
    if version is not None and version.split(".")[0] != str(wanted.major):
        msg = f"{where}: the headers in {include} are of TensorRT {version}"
        raise NotAvailableError(msg, code="tensorrt_headers_wrong", hint=hint)
    banner = f"TensorRT {version or wanted.version} headers"
    return TrtHeaders(include_dir=str(include), declared=False, banner=banner, version=version)


def real_headers(toolchain: Toolchain) -> TrtHeaders | None:
    """Give headers of a TensorRT of the toolchain's major, whatever their minor version; None where there are none here.

    Good for what is stable over a major version, such as the plugin registry; never for a plugin class.
    """
    with contextlib.suppress(NotAvailableError):
        found = find_headers(toolchain)
        if found is not None and not found.declared:
            return found
    major = "" if toolchain.tensorrt is None else str(toolchain.tensorrt.major)
    packages = (each for each in PACKAGED if each.version.split(".")[0] == major)
    return next((found for each in packages if (found := _packaged(each)) is not None), None)


@functools.cache
def _packaged(package: PackagedHeaders) -> TrtHeaders | None:
    """Give the headers of an installed package, if they are the ones that we know; the package itself is not imported."""
    spec = importlib.util.find_spec(package.module)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        include = Path(place) / package.directory
        if included_digest(include) == package.digest:
            version = _version(include)
            banner = f"TensorRT {version} headers of {package.requirement}"
            return TrtHeaders(include_dir=str(include), declared=False, banner=banner, version=version)
    return None


def included_digest(include: Path) -> str | None:
    """Give the digest of the headers that a plugin class includes; None where one is missing."""
    try:
        return digest_bytes(b"".join(name.encode() + (include / name).read_bytes() for name in _INCLUDED))
    except OSError:
        return None


def _version(include: Path) -> str | None:
    """Read NV_TENSORRT_MAJOR, _MINOR, _PATCH; None where no header defines a number."""
    numbers: dict[str, str] = {}
    for name in ("NvInferVersion.h", HEADER):
        path = include / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for key, value in re.findall(
            r"^#define\s+(?:NV_TENSORRT|TRT)_(MAJOR|MINOR|PATCH)(?:_ENTERPRISE)?\s+(\d+)", text, re.MULTILINE
        ):
            numbers.setdefault(key, value)
    if "MAJOR" not in numbers:
        return None
    return ".".join(numbers[key] for key in ("MAJOR", "MINOR", "PATCH") if key in numbers)
