"""Toolchain files: what Forge needs to know to build for an arch spec.

One TOML file per family of arch specs. The files in ``toolchains/`` ship with the package; a directory of an
operator's own comes first, so that a file there replaces a shipped one of the same name.
"""

from __future__ import annotations

import contextlib
import enum
import fnmatch
import functools
import itertools
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.archspec import FIELDS, ArchSpec, host_runtime, nearest
from ytk_core.errors import FormatError, NotAvailableError, UserError

SCHEMA_VERSION = 1
SHIPPED_DIR = Path(__file__).parent / "toolchains"

Version = tuple[int, ...]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A typo in a toolchain file is an error."""


class Match(_Strict, frozen=True, kw_only=True):
    """Shell patterns per field of the arch spec; the first pattern is the best one."""

    cpu: list[str]
    device: list[str]
    os: list[str]
    runtime: list[str]
    engine: list[str]


class HostCode(_Strict, frozen=True, kw_only=True):
    """How host code (everything that runs on the CPU) is compiled, and what the result may depend on."""

    triple: str
    compilers: list[str]
    """Names or paths; the first that exists is taken."""
    min_compiler: str
    elf_machine: str
    """As pyelftools prints ``e_machine``."""
    elf_class: int
    max_glibc: str
    """A version, or "arch": that of the arch spec's runtime field."""
    max_glibcxx: str | dict[str, str]
    """A version, or a table glibc -> GLIBCXX: the entry for the newest glibc that is not newer than the target's."""
    allowed_needed: list[str]
    install: str
    """What to type when the compiler is missing."""
    sysroot: str = ""


class DeviceCompiler(enum.StrEnum):
    """What compiles device code."""

    NVRTC = "nvrtc"
    NVCC = "nvcc"
    CLANG = "clang"


class DeviceLaunch(enum.StrEnum):
    """Through which API host code launches kernels."""

    DRIVER = "driver"
    CUDART = "cudart"


class DeviceCode(_Strict, frozen=True, kw_only=True):
    """How device code is compiled; absent for CPU toolchains."""

    sm: str
    compiler: DeviceCompiler
    version: str
    launch: DeviceLaunch
    install: str
    path: str = ""
    """Of nvcc; empty: the one on PATH. For NVRTC: a directory of Python packages (``pip install --target``) that is looked through
    before those of this interpreter."""
    prefer: list[str] = []
    """Versions of NVRTC to take before ``version`` where they are installed, best first."""


class TensorRTAbi(enum.StrEnum):
    """Against what a plugin class is compiled."""

    HEADERS = "headers"
    """The SDK's own, in ``include_dir``."""
    DECLARED = "declared"
    """Without an SDK, TensorRT 10 and later: an interface declared by hand; the result is not target-verified."""


class TensorRT(_Strict, frozen=True, kw_only=True):
    """Where TensorRT's headers are; ``include_dir`` is an SDK path that the operator sets."""

    version: str
    include_dir: str = ""
    abi: TensorRTAbi = TensorRTAbi.HEADERS
    install: str = ""
    """What to get and set when ``include_dir`` is empty."""

    @property
    def major(self) -> int:
        """Its first number, which decides the plugin interface."""
        return parse_version(self.version)[0]


class Probe(_Strict, frozen=True, kw_only=True):
    """How a built library is loaded for the audit on this machine."""

    emulator: list[str] = []
    """Command before the probe program where the target is another machine than this one, e.g.
    ``["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]``."""
    libraries: list[str] = []
    """Libraries to load before it, for symbols that the target's engine would provide."""
    registry: str = ""
    """Where the target is another machine: a directory with the tensorrt-lean package of that machine, as ``pip install --target
    --platform`` makes it; its registry is then asked too."""


class Toolchain(_Strict, frozen=True, kw_only=True):
    """One toolchain file."""

    schema_version: int
    name: str
    description: str
    match: Match
    host: HostCode
    advertise: dict[str, list[str]] = {}
    """Concrete values for fields that match by pattern; "host" stands for this machine's own value."""
    device: DeviceCode | None = None
    tensorrt: TensorRT | None = None
    probe: Probe = Probe()

    def is_foreign(self) -> bool:
        """Whether its libraries are for another machine than this one, so that an emulator has to load them."""
        return self.host.triple.split("-")[0] != platform.machine().replace("arm64", "aarch64").replace(
            "AMD64", "x86_64"
        )

    def exports(self) -> frozenset[str]:
        """Give the symbols that a library exports, and no other: our table, and what the engine's loader looks for."""
        names = {"ytk_plugin"}
        if self.tensorrt is not None:
            names |= {"setLoggerFinder", "getCreators" if self.tensorrt.major >= 10 else "getPluginCreators"}
        return frozenset(names)

    def mismatches(self, arch: ArchSpec) -> tuple[str, ...]:
        """Give the fields of ``arch`` that no pattern of this toolchain matches; empty: it serves the arch spec."""
        return tuple(
            field
            for field in FIELDS
            if not any(fnmatch.fnmatchcase(str(getattr(arch, field)), p) for p in getattr(self.match, field))
        )

    def arch_specs(self, wanted: ArchSpec | None = None) -> list[ArchSpec]:
        """List concrete arch specs it serves, best first; open fields take ``wanted``'s value where that matches."""
        choices = []
        for field in FIELDS:
            patterns: list[str] = getattr(self.match, field)
            value = str(getattr(wanted, field)) if wanted else ""
            if wanted and any(fnmatch.fnmatchcase(value, p) for p in patterns):
                choices.append([value])
                continue
            listed = self.advertise.get(field, [])
            concrete = [host_runtime() if entry == "host" else entry for entry in listed]
            choices.append(concrete or [p for p in patterns if not set(p) & set("*?[")])
        found = []
        for combination in itertools.product(*choices):
            # A level of one CPU family with the other family is no arch spec.
            with contextlib.suppress(UserError):
                found.append(ArchSpec(*combination))
        return found

    def max_glibc(self, arch: ArchSpec) -> Version:
        """Give the newest glibc symbol version that a library for ``arch`` may need."""
        return glibc_of(arch) if self.host.max_glibc == "arch" else parse_version(self.host.max_glibc)

    def max_glibcxx(self, arch: ArchSpec) -> Version:
        """Give the newest GLIBCXX symbol version that a library for ``arch`` may need."""
        limit = self.host.max_glibcxx
        if isinstance(limit, str):
            return parse_version(limit)
        target = self.max_glibc(arch)
        entries = sorted((parse_version(glibc), parse_version(glibcxx)) for glibc, glibcxx in limit.items())
        not_newer = [glibcxx for glibc, glibcxx in entries if glibc <= target]
        # A target older than the table: the oldest entry is the nearest that is known.
        return not_newer[-1] if not_newer else entries[0][1]


class Compiler(_Strict, frozen=True, kw_only=True):
    """A compiler that was found and asked."""

    path: str
    version: Version
    machine: str
    banner: str
    """First line of ``--version``; part of the build cache's key."""


def parse_version(text: str) -> Version:
    """Turn "3.4.30" into (3, 4, 30).

    Raises:
        FormatError: It is not numbers separated by dots.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        msg = f"not a version: {text!r}"
        raise FormatError(msg, hint="Versions are numbers separated by dots, e.g. '2.36'.")
    return tuple(int(part) for part in text.split("."))


def show_version(version: Version) -> str:
    """Turn (3, 4, 30) into "3.4.30"."""
    return ".".join(map(str, version))


def glibc_of(arch: ArchSpec) -> Version:
    """Give the glibc version of an arch spec's runtime field: "glibc236" is (2, 36).

    Raises:
        UserError: The runtime field names no glibc.
    """
    found = re.fullmatch(r"glibc(\d)(\d+)", arch.runtime)
    if found is None:
        msg = f"arch spec {arch}: runtime {arch.runtime!r} names no glibc"
        raise UserError(
            msg, code="bad_arch_spec", hint="The runtime of a CPU arch spec is like glibc236 for glibc 2.36."
        )
    return int(found[1]), int(found[2])


def load_toolchain(path: Path) -> Toolchain:
    """Read and check one toolchain file.

    ``extends = "NAME"`` takes everything that the file does not say from the shipped toolchain of that name, its name included.

    Raises:
        FormatError: It is not TOML, has unknown or missing keys, or a value is out of range; file and key are named.
    """
    tree = _read_tree(path)
    if (base := tree.pop("extends", None)) is not None:
        shipped = SHIPPED_DIR / f"{base}.toml"
        if not shipped.is_file():
            known = ", ".join(sorted(each.stem for each in SHIPPED_DIR.glob("*.toml")))
            msg = f"{path}: extends {base!r}, which is no shipped toolchain"
            raise FormatError(msg, code="bad_toolchain", hint=f"There are: {known}.")
        tree = _merged(_read_tree(shipped), tree)
    try:
        toolchain = msgspec.convert(tree, Toolchain)
        _check(toolchain)
    except (msgspec.ValidationError, FormatError) as err:
        msg = f"{path}: {err}"
        raise FormatError(msg, code="bad_toolchain", hint="docs/reference/toolchains.md has the schema.") from err
    return toolchain


def _read_tree(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        msg = f"{path}: not a readable toolchain file: {err}"
        raise FormatError(msg, code="bad_toolchain", hint="docs/reference/toolchains.md has the schema.") from err


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Give the base with the keys of ``changes`` in place of its own, section by section."""
    both = {key: _merged(base[key], value) for key, value in changes.items() if isinstance(base.get(key), dict)}
    return base | changes | both


def _check(toolchain: Toolchain) -> None:
    """Check what the types cannot say."""
    if toolchain.schema_version != SCHEMA_VERSION:
        msg = f"schema_version is {toolchain.schema_version}, this Forge reads {SCHEMA_VERSION}"
        raise FormatError(msg)
    for field in FIELDS:
        patterns: list[str] = getattr(toolchain.match, field)
        if not patterns:
            msg = f"match.{field} is empty"
            raise FormatError(msg)
        if all(set(p) & set("*?[") for p in patterns) and not toolchain.advertise.get(field):
            msg = f"match.{field} has only patterns: advertise.{field} must list concrete values"
            raise FormatError(msg)
    for field, values in toolchain.advertise.items():
        if field not in FIELDS:
            msg = f"advertise.{field}: not a field of the arch spec ({', '.join(FIELDS)})"
            raise FormatError(msg)
        if "host" in values and field != "runtime":
            msg = f"advertise.{field}: 'host' is only known for the runtime"
            raise FormatError(msg)
    host = toolchain.host
    if host.elf_class not in {32, 64}:
        msg = f"host.elf_class is {host.elf_class}, wanted 32 or 64"
        raise FormatError(msg)
    if not host.compilers or not host.max_glibcxx:
        msg = "host.compilers and host.max_glibcxx must not be empty"
        raise FormatError(msg)
    parse_version(host.min_compiler)
    if any(pattern.startswith("sm") for pattern in toolchain.match.device) != (toolchain.device is not None):
        msg = "match.device and [device] do not go together: a GPU needs [device], a CPU has none"
        raise FormatError(msg)
    for section in (toolchain.device, toolchain.tensorrt):
        if section is not None:
            parse_version(section.version)
    for version in toolchain.device.prefer if toolchain.device is not None else ():
        parse_version(version)
    if host.max_glibc != "arch":
        parse_version(host.max_glibc)
    table = {host.max_glibcxx: host.max_glibcxx} if isinstance(host.max_glibcxx, str) else host.max_glibcxx
    for key, value in table.items():
        parse_version(key)
        parse_version(value)


def load_toolchains(extra_dirs: Sequence[Path] = ()) -> list[Toolchain]:
    """Read all toolchain files; ``extra_dirs`` come first and replace shipped files of the same name.

    Raises:
        FormatError: A file is wrong.
        UserError: A directory does not exist.
    """
    found: dict[str, Toolchain] = {}
    for directory in (*extra_dirs, SHIPPED_DIR):
        if not directory.is_dir():
            msg = f"no toolchain directory {directory}"
            raise UserError(msg, hint="Correct --toolchain-dir, or leave it out to use the shipped files.")
        for path in sorted(directory.glob("*.toml")):
            toolchain = load_toolchain(path)
            found.setdefault(toolchain.name, toolchain)
    return list(found.values())


def toolchain_for(arch: ArchSpec, toolchains: Iterable[Toolchain] | None = None) -> Toolchain:
    """Give the first toolchain that serves an arch spec.

    Raises:
        UserError: None does (code "unknown_arch"); the nearest arch spec and the field that differs are named.
    """
    known = list(load_toolchains() if toolchains is None else toolchains)
    for toolchain in known:
        if not toolchain.mismatches(arch):
            return toolchain
    near = nearest(arch, [spec for toolchain in known for spec in toolchain.arch_specs(arch)])
    if near is None:
        msg = f"no toolchain for arch spec {arch}: this Forge has no toolchain file at all"
        raise UserError(msg, code="unknown_arch", hint="Give a directory of toolchain files with --toolchain-dir.")
    spec, fields = near
    differing = ", ".join(f"{field} ({getattr(arch, field)}, has {getattr(spec, field)})" for field in fields)
    msg = f"no toolchain for arch spec {arch}; the nearest is {spec}, which differs in {differing}"
    hint = f"Build with -a {spec}, or add a toolchain file for {arch} (`ytk-forge toolchains` lists those there are)."
    raise UserError(msg, code="unknown_arch", hint=hint)


def find_compiler(toolchain: Toolchain) -> Compiler:
    """Give the toolchain's host compiler.

    Raises:
        NotAvailableError: None of its names is installed, or it is too old or for another machine; the hint says what
            to install.
    """
    host = toolchain.host
    path = next((hit for name in host.compilers if (hit := shutil.which(name))), None)
    if path is None:
        msg = f"toolchain {toolchain.name}: no C++ compiler: none of {', '.join(host.compilers)} is on PATH"
        raise NotAvailableError(msg, code="compiler_missing", hint=f"Install it: {host.install}.")
    compiler = _ask(path, Path(path).stat().st_mtime_ns)
    if compiler.version < parse_version(host.min_compiler):
        msg = f"toolchain {toolchain.name}: {path} is version {show_version(compiler.version)}, wanted {host.min_compiler} or newer"
        raise NotAvailableError(msg, code="compiler_too_old", hint=f"Install a newer one: {host.install}.")
    if compiler.machine.split("-")[0] != host.triple.split("-")[0]:
        msg = f"toolchain {toolchain.name}: {path} compiles for {compiler.machine}, wanted {host.triple}"
        raise NotAvailableError(msg, code="compiler_wrong_target", hint=f"Install it: {host.install}.")
    if host.sysroot and not Path(host.sysroot).is_dir():
        msg = f"toolchain {toolchain.name}: no sysroot {host.sysroot}"
        raise NotAvailableError(msg, code="sysroot_missing", hint=f"Install it: {host.install}.")
    return compiler


@functools.lru_cache(maxsize=64)
def _ask(path: str, _mtime_ns: int) -> Compiler:
    """Ask a compiler who it is; asked again when its file changes."""

    def say(*arguments: str) -> str:
        try:
            done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as err:
            msg = f"{path} {' '.join(arguments)} does not work: {err}"
            raise NotAvailableError(msg, code="compiler_broken", hint="Reinstall the compiler.") from err
        return done.stdout.strip()

    return Compiler(
        path=path,
        version=parse_version(say("-dumpfullversion", "-dumpversion").splitlines()[0]),
        machine=say("-dumpmachine"),
        banner=say("--version").splitlines()[0],
    )


def host_problems(toolchain: Toolchain) -> list[str]:
    """List what the host code and the probe lack; :func:`ytk_forge.readiness.problems` lists everything."""
    found: list[str] = []
    try:
        find_compiler(toolchain)
    except NotAvailableError as err:
        found.append(f"{err.message}. {err.hint}")
    if toolchain.is_foreign():
        if not toolchain.probe.emulator:
            found.append(
                f"probe.emulator is empty, and this machine is {platform.machine()}: no program of {toolchain.host.triple} runs here."
            )
        elif shutil.which(toolchain.probe.emulator[0]) is None:
            found.append(f"no emulator {toolchain.probe.emulator[0]} on PATH. Install it: {toolchain.host.install}.")
    found.extend(f"no probe library {lib}." for lib in toolchain.probe.libraries if not Path(lib).is_file())
    return found
