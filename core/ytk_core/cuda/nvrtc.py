"""NVRTC from the ``nvidia-cuda-nvrtc`` wheels: find the wanted version, compile in the sandbox, read the answer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ytk_core.confined import run_confined
from ytk_core.cuda.result import COMPILE_LIMIT_S, DeviceResult, compile_error, too_slow
from ytk_core.errors import BoardError, NotAvailableError, ToolkitError
from ytk_core.sandbox import SandboxMode

_HEADER_TOP_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
_CHILD = Path(__file__).with_name("nvrtc_child.py")
# NVRTC has no C library: what ytk_kernel.h and portable kernels include from it.
_SHIMS = {
    "stdint.h": """#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
typedef long long intptr_t;
""",
    "stddef.h": "#pragma once\n",
}
_SHIMS["cstdint"] = "#pragma once\n#include <stdint.h>\n"
_SHIMS["cstddef"] = "#pragma once\n"
_SHIMS["cmath"] = "#pragma once\n"
_SHIMS["math.h"] = "#pragma once\n"


class Nvrtc(msgspec.Struct, frozen=True, kw_only=True):
    """An NVRTC that was found."""

    version: str
    library: str
    preload: tuple[str, ...]
    include_dir: str
    size_bytes: int
    """Of the library: with the version it tells one build of NVRTC from another."""

    @property
    def banner(self) -> str:
        """For manifests, logs and the cache's key: without paths, which are the machine's own business."""
        return f"NVRTC {self.version} ({Path(self.library).name}, {self.size_bytes} bytes)"


def search_dirs() -> list[Path]:
    """Give the ``nvidia`` directories of this interpreter's packages, where the wheels put their files."""
    return [path for entry in sys.path if (path := Path(entry) / "nvidia").is_dir()]


def find_nvrtc(wanted: str, install: str, roots: Sequence[Path] | None = None) -> Nvrtc:
    """Find NVRTC and the CUDA headers of one version.

    Wheels of several CUDA versions share directories, so files are told apart by version and not by place.

    Args:
        wanted: Like "11.8".
        install: What to install where it is missing.
        roots: Directories to look in; default: those of this interpreter's packages.

    Raises:
        NotAvailableError: ``nvrtc_missing`` or ``cuda_headers_missing``; the hint says what to install.
    """
    places = search_dirs() if roots is None else list(roots)
    major = wanted.split(".", maxsplit=1)[0]
    hint = f"Install it: {install}."
    for builtins in sorted(b for root in places for b in root.glob(f"*/lib/libnvrtc-builtins.so.{wanted}")):
        libraries = sorted(builtins.parent.glob(f"libnvrtc.so.{major}*"))
        if libraries:
            break
    else:
        msg = f"no NVRTC {wanted} in the Python packages of {sys.prefix}"
        raise NotAvailableError(msg, code="nvrtc_missing", hint=hint)
    for header in sorted(h for root in places for h in root.glob("*/include/cuda_fp16.h")):
        if _cuda_version(header.with_name("cuda.h")) == wanted:
            return Nvrtc(
                version=wanted,
                library=str(libraries[0]),
                preload=(str(builtins),),
                include_dir=str(header.parent),
                size_bytes=libraries[0].stat().st_size,
            )
    msg = f"no CUDA {wanted} headers (cuda_fp16.h) in the Python packages of {sys.prefix}"
    raise NotAvailableError(msg, code="cuda_headers_missing", hint=hint)


def _cuda_version(header: Path) -> str | None:
    """Read ``#define CUDA_VERSION 11080`` as "11.8"."""
    try:
        with header.open("rb") as stream:
            # It is near the top of a file of a megabyte, and this is in the way of every cached build.
            text = stream.read(_HEADER_TOP_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", text, re.MULTILINE)
    return None if found is None else f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    status: int
    error: str
    log: str


def compile_with_nvrtc(
    nvrtc: Nvrtc,
    flags: Sequence[str],
    headers: Sequence[Path],
    workdir: Path,
    *,
    mode: SandboxMode,
    log: Callable[[str], None],
) -> DeviceResult:
    """Compile ``kernel.cpp`` in ``workdir`` as device code, in the sandbox.

    Args:
        nvrtc: The compiler.
        flags: :func:`ytk_core.cuda_build.device_flags`.
        headers: Files that the text may include by name.
        workdir: Has ``kernel.cpp``; gets ``device.cubin``.
        mode: "optional" works without a sandbox where there is none.
        log: Gets the compiler's messages.

    Raises:
        CandidateError: The text does not compile ("device_compile_error"), or takes too long ("compile_timeout").
        BoardError: The compiler was killed or does not load ("device_compiler_broken").
        ToolkitError: The compiler gave no cubin.
    """
    include = workdir / "device_include"
    include.mkdir()
    for name, text in _SHIMS.items():
        (include / name).write_text(text, encoding="ascii")
    for header in headers:
        (include / header.name).write_bytes(header.read_bytes())
    # -default-device: a function of the shared text needs no __device__. ptxas -v: registers, spills and shared memory.
    options = [*flags, "-default-device", "--ptxas-options=-v", "-Idevice_include", f"-I{nvrtc.include_dir}"]
    request = {
        "library": nvrtc.library,
        "preload": nvrtc.preload,
        "source": "kernel.cpp",
        "options": options,
        "cubin": "device.cubin",
    }
    (workdir / "nvrtc.json").write_text(json.dumps(request), encoding="utf-8")
    log(f"$ nvrtc {' '.join(flags)} kernel.cpp\n")
    done = run_confined(
        [sys.executable, "-I", "-S", str(_CHILD), "nvrtc.json", "nvrtc-answer.json"],
        workdir,
        mode=mode,
        wall_limit_s=COMPILE_LIMIT_S,
        read_only=[_CHILD.parent, Path(nvrtc.library).parent, Path(nvrtc.include_dir)],
    )
    if done.timed_out:
        raise too_slow()
    answer = _read_answer(workdir / "nvrtc-answer.json")
    if answer is None:
        last = (done.output.strip().splitlines() or [""])[-1]
        msg = f"the device compiler ended with {done.returncode} and no answer: {last[:200]}"
        raise BoardError(
            msg, code="compiler_killed", hint="The machine ran out of memory: give Forge more, or fewer slots."
        )
    log(answer.log if answer.log.endswith("\n") or not answer.log else answer.log + "\n")
    if answer.status < 0 or answer.version != nvrtc.version:
        msg = f"{nvrtc.banner} does not work here: {answer.error or f'it says it is {answer.version}'}"
        raise BoardError(msg, code="device_compiler_broken", hint="Reinstall the nvidia-cuda-nvrtc wheel.")
    if answer.status:
        raise compile_error(answer.log, answer.error)
    cubin = workdir / "device.cubin"
    if cubin.is_symlink() or not cubin.is_file():
        msg = f"{nvrtc.banner} reported success and wrote no cubin"
        raise ToolkitError(msg, hint="Report this with the build log.")
    return DeviceResult(cubin=cubin.read_bytes(), log=answer.log)


def _read_answer(path: Path) -> _Answer | None:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_ANSWER_BYTES:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
