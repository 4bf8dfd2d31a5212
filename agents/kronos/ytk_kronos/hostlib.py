"""The engine host library: built once per OpenVINO wheel with g++, kept under its content key.

The library is the bridge between OpenVINO's C++ API and the plain C contract of kernel libraries. It has to match the
wheel that is installed here, so it is compiled against the headers and libraries in that very wheel.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from ytk_core.abi import include_dir
from ytk_core.errors import BoardError, NotAvailableError, ToolkitError

SOURCES = ("kernel_library.cpp", "ov_types.cpp", "ov_host.cpp")
_HEADERS = ("kernel_library.h", "ov_types.h")
# The wheel is built with the new C++11 string ABI; a distribution's g++ may be configured for the old one.
_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-Wl,--no-undefined",
)
COMPILER = "g++"
# Six seconds on an idle desktop core; boards are slow and builds may be in line.
_COMPILE_LIMIT_S = 900.0


def host_sources() -> Path:
    """Give the directory of the host library's C++ sources."""
    return Path(__file__).parent / "host"


def default_cache_dir() -> Path:
    """Give the per-user cache directory for host libraries: ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "yasp-toolkit" / "hosts"


def openvino_dir() -> Path:
    """Give the installed OpenVINO package's directory, without importing it.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """
    spec = importlib.util.find_spec("openvino")
    if spec is None or spec.origin is None:
        raise NotAvailableError(
            "OpenVINO is not installed", code="no_openvino", hint="pip install 'yasp-toolkit[kronos]' on this worker."
        )
    return Path(spec.origin).parent


def openvino_version() -> str:
    """Give the installed OpenVINO's version, e.g. ``2026.4.1``.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """
    openvino_dir()
    return importlib.metadata.version("openvino")


def engine_field() -> str:
    """Give the ``engine`` field of this worker's arch specs, e.g. ``ov20264`` for OpenVINO 2026.4.x.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """
    year, minor = openvino_version().split(".")[:2]
    return f"ov{year}{minor}"


def content_key() -> str:
    """Give the key of the host library that belongs here: sources, kernel contract, flags and engine wheel.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """
    hasher = blake3()
    files = [*(host_sources() / name for name in (*SOURCES, *_HEADERS)), include_dir() / "ytk_kernel.h"]
    parts = [openvino_version(), *(library.name for library in _engine_libraries()), *_FLAGS]
    for part in (*(text.encode() for text in parts), *(path.read_bytes() for path in files)):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()[:32]


def host_path(cache_dir: Path) -> Path:
    """Give where the host library that belongs here is in a cache, built or not.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """
    return cache_dir / f"ytk-ov-host-{content_key()}.so"


def ensure_host(cache_dir: Path, log: Callable[[str], None] = lambda _text: None) -> Path:
    """Give the host library, compiled now if it is not in the cache.

    Two processes may call this at once: each compiles into a directory of its own, and the rename is atomic.

    Args:
        cache_dir: Made if missing; libraries of other versions in it are left alone.
        log: Takes a line before and after a compilation.

    Raises:
        NotAvailableError: OpenVINO is not installed.
        BoardError: ``no_compiler``: there is no g++; ``host_build_failed``: it failed, with its first lines.
    """
    library = host_path(cache_dir)
    if library.is_file():
        return library
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise BoardError(
            f"the engine host library has to be compiled once, and {COMPILER} is not installed on this worker",
            code="no_compiler",
            hint="Install it on the worker (Debian, Ubuntu: apt install g++), then run again.",
        )
    log(f"compiling the engine host library for OpenVINO {openvino_version()} (once per version)")
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".build-") as build:
        built = Path(build) / library.name
        _compile(compiler, built)
        built.replace(library)
    log(f"engine host library: {library}")
    return library


def _engine_libraries() -> list[Path]:
    """The two libraries that the host is linked with; their names carry the soname's version."""
    libs = openvino_dir() / "libs"
    found: list[Path] = []
    for stem in ("libopenvino.so", "libopenvino_onnx_frontend.so"):
        matches = sorted(libs.glob(f"{stem}.*"))
        if len(matches) != 1:
            raise NotAvailableError(
                f"OpenVINO {importlib.metadata.version('openvino')} in {libs.parent} has {len(matches)} files {stem}.*, not one",
                code="no_openvino",
                hint="Install the OpenVINO wheel again: pip install --force-reinstall openvino.",
            )
        found += matches
    return found


def _compile(compiler: str, output: Path) -> None:
    libraries = _engine_libraries()
    command = [
        compiler,
        *_FLAGS,
        f"-I{include_dir()}",
        f"-isystem{openvino_dir() / 'include'}",
        *(str(host_sources() / name) for name in SOURCES),
        f"-L{libraries[0].parent}",
        *(f"-l:{library.name}" for library in libraries),
        "-ldl",
        "-o",
        str(output),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as err:
        raise BoardError(
            f"compiling the engine host library took more than {_COMPILE_LIMIT_S:.0f} s", code="host_build_failed"
        ) from err
    if done.returncode == 0:
        return
    first_lines = "\n".join(done.stderr.splitlines()[:20])
    # Headers that are absent are the board's to mend; an error in our own sources is ours.
    if "fatal error" in done.stderr and "No such file" in done.stderr:
        raise BoardError(
            f"compiling the engine host library failed:\n{first_lines}",
            code="host_build_failed",
            hint="Install the C++ standard library headers (Debian, Ubuntu: apt install g++).",
        )
    raise ToolkitError(f"compiling the engine host library failed:\n{first_lines}", code="host_build_failed")
