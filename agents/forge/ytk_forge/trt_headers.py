"""TensorRT's headers: where they are, which version they are of, and what to do where there are none."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from ytk_core.errors import NotAvailableError
from ytk_forge.toolchain import TensorRTAbi, Toolchain

DECLARED_DIR = Path(__file__).parent / "probe" / "trt_abi"
HEADER = "NvInferRuntime.h"
_DECLARED_SINCE = 10


class TrtHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """A directory to compile a plugin class against."""

    include_dir: str
    declared: bool
    """By hand, from the documentation: the result is not target-verified."""
    banner: str
    """For manifests and the cache's key."""


def find_headers(toolchain: Toolchain) -> TrtHeaders | None:
    """Give the headers of a toolchain's TensorRT; None where it is for another engine.

    Raises:
        NotAvailableError: ``tensorrt_headers_missing``: there are none, and the hint says which key of which toolchain to
            set; ``tensorrt_headers_wrong``: they are of another major version.
    """
    wanted = toolchain.tensorrt
    if wanted is None:
        return None
    where = f"toolchain {toolchain.name}: TensorRT {wanted.version}"
    hint = (
        f"{wanted.install or 'Get the SDK'}. To set it, copy the toolchain file {toolchain.name}.toml into a directory of your own, "
        f'write include_dir = "/path/to/include" under [tensorrt], and start Forge with --toolchain-dir DIRECTORY.'
    )
    if not wanted.include_dir:
        if wanted.abi is TensorRTAbi.DECLARED and wanted.major >= _DECLARED_SINCE:
            return TrtHeaders(
                include_dir=str(DECLARED_DIR), declared=True, banner="declared interface 1 (no SDK headers)"
            )
        if wanted.major >= _DECLARED_SINCE:
            hint += ' Without the headers: abi = "declared" under [tensorrt] builds against an interface declared by hand; the plugin is then marked as not target-verified.'
        msg = f"{where}: no headers: tensorrt.include_dir is empty"
        raise NotAvailableError(msg, code="tensorrt_headers_missing", hint=hint)
    include = Path(wanted.include_dir)
    if not (include / HEADER).is_file():
        msg = f"{where}: no {HEADER} in tensorrt.include_dir = {include}"
        raise NotAvailableError(msg, code="tensorrt_headers_missing", hint=hint)
    found = _version(include)
    if found is not None and found.split(".")[0] != str(wanted.major):
        msg = f"{where}: the headers in {include} are of TensorRT {found}"
        raise NotAvailableError(msg, code="tensorrt_headers_wrong", hint=hint)
    return TrtHeaders(include_dir=str(include), declared=False, banner=f"TensorRT {found or wanted.version} headers")


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
