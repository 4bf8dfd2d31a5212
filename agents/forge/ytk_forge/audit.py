"""What is checked on every built library before anyone loads it: the ELF file itself, then what its table says.

Static checks read the file; the last ones load it in a sandboxed process (:mod:`ytk_forge.probe`). Each check has a name
that stays the same over versions, and says what was found, what was wanted and how to mend it.
"""

from __future__ import annotations

import io
import re
import subprocess
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.errors import BoardError, CandidateError, FailureClass, ToolkitError, YtkError
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.sandbox import SandboxMode
from ytk_forge.device import checks as device_checks
from ytk_forge.device.driver_stub import SONAME, driver_stub
from ytk_forge.probe import registry
from ytk_forge.probe.compare import REGISTERED, TABLE_CHECKS, compare_creators, compare_table
from ytk_forge.probe.run import run_probe
from ytk_forge.toolchain import Compiler, Toolchain, Version, parse_version, show_version

AUDIT_VERSION = "2"
"""Part of every build's cache key: increase it with any change to what is checked."""

# Who has to act when a check fails. Table checks fail only through a bug of the renderer; see _blame.
_BLAME: dict[str, FailureClass] = {
    "elf": FailureClass.OURS,
    "machine": FailureClass.BOARDS,
    "needed": FailureClass.BOARDS,
    "glibc": FailureClass.CANDIDATES,
    "glibcxx": FailureClass.CANDIDATES,
    "exports": FailureClass.CANDIDATES,
    "undefined": FailureClass.CANDIDATES,
    "exec_stack": FailureClass.CANDIDATES,
    "search_path": FailureClass.BOARDS,
    "textrel": FailureClass.CANDIDATES,
    "load": FailureClass.CANDIDATES,
    **dict.fromkeys(TABLE_CHECKS, FailureClass.OURS),
}
CHECKS = tuple(_BLAME)
"""Of every library; those with device code have :data:`ytk_forge.device.checks.CHECKS` too."""
_BLAME |= dict.fromkeys((REGISTERED, registry.CHECK), FailureClass.OURS)
_BLAME |= dict.fromkeys(device_checks.CHECKS, FailureClass.CANDIDATES)
_BLAME |= dict.fromkeys(("cubin", "cubin_sm", "cubin_abi"), FailureClass.BOARDS)
_ERROR_OF: dict[FailureClass, type[YtkError]] = {
    FailureClass.CANDIDATES: CandidateError,
    FailureClass.BOARDS: BoardError,
    FailureClass.OURS: ToolkitError,
}


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """What the static checks need to know of an ELF shared library."""

    machine: str
    elf_class: int
    needed: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    """(library, symbol version) that it needs, e.g. ``("libc.so.6", "GLIBC_2.34")``."""
    exported: frozenset[str]
    undefined: frozenset[str]
    """Not weak: the loader must find them."""
    executable: tuple[str, ...]
    """Writable segments that are executable too."""
    search_path: tuple[str, ...]
    """Tags that make the loader look elsewhere or load more: RPATH, RUNPATH, AUDIT, ..."""
    textrel: bool


class NotElfError(Exception):
    """The file is not a shared library."""


def read_library(path: Path) -> Library:
    """Read an ELF shared library.

    Raises:
        NotElfError: It is not one; the text says why.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        # In memory: a damaged table then leads out of the text, never to an error of the file system.
        return _read(ELFFile(io.BytesIO(path.read_bytes())))
    except ELFError as err:
        raise NotElfError(f"no ELF file: {err}") from err
    except (OSError, NotElfError):
        raise
    except Exception as err:
        # pyelftools parses lazily, and what it raises on a damaged table is whatever it trips over there.
        raise NotElfError(f"a damaged ELF file: {type(err).__name__}: {err}") from err


def _read(elf: Any) -> Library:
    if elf["e_type"] != "ET_DYN":
        raise NotElfError(f"an ELF file of type {elf['e_type']}, not a shared library")
    tags = [tag for segment in elf.iter_segments("PT_DYNAMIC") for tag in segment.iter_tags()]
    flags = next((tag.entry.d_val for tag in tags if tag.entry.d_tag == "DT_FLAGS"), 0)
    exported, undefined = set(), set()
    symbols = elf.get_section_by_name(".dynsym")
    for symbol in symbols.iter_symbols() if symbols is not None else ():
        binding, shared = (
            symbol["st_info"]["bind"],
            symbol["st_other"]["visibility"] in {"STV_DEFAULT", "STV_PROTECTED"},
        )
        if not symbol.name or binding == "STB_LOCAL":
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            if shared:
                exported.add(symbol.name)
        elif binding != "STB_WEAK":
            undefined.add(symbol.name)
    verneed = elf.get_section_by_name(".gnu.version_r")
    versions = [
        (library.name, version.name)
        for library, entries in (verneed.iter_versions() if verneed is not None else ())
        for version in entries
    ]
    writable_code = [
        str(segment["p_type"])
        for segment in elf.iter_segments()
        if segment["p_type"] in {"PT_LOAD", "PT_GNU_STACK"} and segment["p_flags"] & 3 == 3
    ]
    if not any(segment["p_type"] == "PT_GNU_STACK" for segment in elf.iter_segments()):
        # Without the header the loader makes every thread's stack executable.
        writable_code.append("PT_GNU_STACK is missing")
    return Library(
        machine=str(elf["e_machine"]),
        elf_class=int(elf.elfclass),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        versions=tuple(versions),
        exported=frozenset(exported),
        undefined=frozenset(undefined),
        executable=tuple(writable_code),
        search_path=tuple(str(tag.entry.d_tag) for tag in tags if tag.entry.d_tag in _SEARCH_TAGS),
        textrel=any(tag.entry.d_tag == "DT_TEXTREL" for tag in tags) or bool(flags & 4),
    )


_SEARCH_TAGS = frozenset({"DT_RPATH", "DT_RUNPATH", "DT_AUDIT", "DT_DEPAUDIT", "DT_AUXILIARY", "DT_FILTER"})


def audit(
    path: Path,
    *,
    meta: PluginMeta,
    arch: ArchSpec,
    toolchain: Toolchain,
    compiler: Compiler,
    mode: SandboxMode,
    device_log: str = "",
    cache_dir: Path | None = None,
) -> list[CheckResult]:
    """Check a built library; every check that could run is in the result, failed ones too.

    The library is loaded only when all static checks passed. ``device_log``: the device compiler's messages, if at hand.
    ``cache_dir``: keeps the probe program.

    Raises:
        BoardError: No sandbox works and ``mode`` is ``required``.
    """
    try:
        library = read_library(path)
    except NotElfError as err:
        return [
            _result(
                name="elf",
                ok=False,
                found=str(err),
                wanted="an ELF shared library",
                fix="Report this with the build log.",
            )
        ]
    results = [_result(name="elf", ok=True, found="an ELF shared library", wanted="an ELF shared library", fix="")]
    results += static_checks(library, arch=arch, toolchain=toolchain, provides=_symbols(toolchain, compiler, mode))
    if toolchain.device is not None:
        results += device_checks.device_checks(path, arch=arch, compiler_log=device_log)
    if not all(result.ok for result in results):
        return results
    answer = run_probe(path, meta, toolchain, compiler, mode=mode, cache_dir=cache_dir)
    loaded = answer.table is not None
    fix = "Look at the kernel's static initialisers: loading must do nothing but return."
    results.append(
        _result(name="load", ok=loaded, found="loads" if loaded else answer.problem, wanted="loads", fix=fix)
    )
    if answer.table is not None:
        results += compare_table(answer, meta)
        if toolchain.tensorrt is not None:
            results.append(compare_creators(answer, meta, toolchain.tensorrt.major))
            if not registry.why_not(toolchain):
                results.append(registry.check_registry(path, meta, toolchain, compiler, mode=mode, cache_dir=cache_dir))
    return results


def static_checks(
    library: Library, *, arch: ArchSpec, toolchain: Toolchain, provides: Callable[[str, str], bool | None]
) -> list[CheckResult]:
    """Check what the file says about itself.

    Args:
        library: The file.
        arch: What it is for.
        toolchain: What it was built with; has the limits.
        provides: Whether a library (by its NEEDED name) has a symbol; None where the library is not found here.
    """
    host = toolchain.host
    extra = sorted(set(library.needed) - set(host.allowed_needed))
    wanted_machine = f"{host.elf_machine}, {host.elf_class} bit"
    found_machine = f"{library.machine}, {library.elf_class} bit"
    exports = toolchain.exports()
    missing, unknown_exports = exports - library.exported, library.exported - exports
    return [
        _result(
            name="machine",
            ok=found_machine == wanted_machine,
            found=found_machine,
            wanted=wanted_machine,
            fix=f"Correct the compiler of toolchain {toolchain.name}: it builds for another machine.",
        ),
        _result(
            name="needed",
            ok=not extra,
            found=_listed(extra or library.needed),
            wanted=f"only {_listed(host.allowed_needed)}",
            fix=f"Link without {_listed(extra)}, or, if every target has it, add it to allowed_needed of toolchain {toolchain.name}.",
        ),
        _version_check("glibc", "GLIBC", library, toolchain.max_glibc(arch)),
        _version_check("glibcxx", "GLIBCXX", library, toolchain.max_glibcxx(arch)),
        _result(
            name="exports",
            ok=not missing and not unknown_exports,
            found=_listed(library.exported),
            wanted=f"exactly {_listed(exports)}",
            fix=f"Do not define {_listed(exports)} or make other symbols visible in the bundle's SOURCE; Forge renders the exports.",
        ),
        _undefined_check(library, provides),
        _result(
            name="exec_stack",
            ok=not library.executable,
            found=_listed(library.executable) if library.executable else "no writable code",
            wanted="no writable code",
            fix="Remove the assembler directives or linker flags that make a stack or data section executable.",
        ),
        _result(
            name="search_path",
            ok=not library.search_path,
            found=_listed(library.search_path) if library.search_path else "no search path",
            wanted="no search path",
            fix="Remove -rpath, --audit, --filter and --auxiliary from what the compiler of the toolchain links with.",
        ),
        _result(
            name="textrel",
            ok=not library.textrel,
            found="DT_TEXTREL" if library.textrel else "position-independent code",
            wanted="position-independent code",
            fix="Remove absolute addresses from inline assembler in the bundle's SOURCE.",
        ),
    ]


def _result(*, name: str, ok: bool, found: str, wanted: str, fix: str) -> CheckResult:
    """Give a check's result; what passed needs no fix."""
    return CheckResult(name=name, ok=ok, found=found, wanted=wanted, fix="" if ok else fix)


def _listed(items: Iterable[str]) -> str:
    return ", ".join(sorted(items)) or "nothing"


def _version_check(name: str, prefix: str, library: Library, limit: Version) -> CheckResult:
    """Compare the newest symbol version of one family with the target's."""
    numbered: list[tuple[Version, str]] = []
    odd: list[str] = []
    for provider, version in library.versions:
        family, _, number = version.partition("_")
        if family != prefix:
            continue
        if re.fullmatch(r"\d+(\.\d+)*", number):
            numbered.append((parse_version(number), f"{version} of {provider}"))
        elif number == "ABI_DT_RELR":
            # Not a symbol: the mark that the loader must know compressed relocations (glibc 2.36).
            numbered.append(((2, 36), f"{version} of {provider}"))
        else:
            # GLIBC_PRIVATE changes without notice.
            odd.append(f"{version} of {provider}")
    too_new = [text for version, text in sorted(numbered) if version > limit]
    newest = max(numbered, default=((0,), "none"))[1]
    return _result(
        name=name,
        ok=not too_new and not odd,
        found=_listed(too_new + odd) if too_new or odd else newest,
        wanted=f"at most {prefix}_{show_version(limit)}",
        fix=f"Avoid the functions that came after {prefix} {show_version(limit)} in the bundle's SOURCE, or build for an arch spec with a newer runtime.",
    )


def _undefined_check(library: Library, provides: Callable[[str, str], bool | None]) -> CheckResult:
    answers = {name: [provides(needed, name) for needed in library.needed] for name in library.undefined}
    lost = [name for name, found in answers.items() if True not in found]
    # A library that is not here may have it: the check cannot pass, and says why.
    absent = [needed for needed in library.needed if provides(needed, "") is None]
    found = _listed(lost) if lost else "every symbol is in a NEEDED library"
    if lost and absent:
        found += f" (not on this machine: {_listed(absent)})"
    return _result(
        name="undefined",
        ok=not lost,
        found=found,
        wanted="every symbol is in a NEEDED library",
        fix="Define these functions in the bundle's SOURCE, or do without them.",
    )


def _symbols(toolchain: Toolchain, compiler: Compiler, mode: SandboxMode) -> Callable[[str, str], bool | None]:
    stubs = {SONAME: driver_stub(toolchain.host.sysroot, compiler, mode)} if toolchain.device is not None else {}
    return symbol_finder(compiler, stubs)


def symbol_finder(
    compiler: Compiler, stubs: Mapping[str, bytes] = types.MappingProxyType({})
) -> Callable[[str, str], bool | None]:
    """Give a function that looks for a symbol in a library of the compiler's target, through its hash table.

    Args:
        compiler: Knows where its target's libraries are.
        stubs: Stand-ins for libraries that only the board has, by name.
    """
    from elftools.elf.elffile import ELFFile

    open_tables: dict[str, Any] = {}

    def table_of(library: str) -> Any:
        if library in stubs and library not in open_tables:
            open_tables[library] = _hash_table(ELFFile(io.BytesIO(stubs[library])))
        if library not in open_tables:
            asked = [compiler.path, f"-print-file-name={library}"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
            path = Path(done.stdout.strip())
            open_tables[library] = None
            if path.is_absolute():
                # In memory: the hash table reads from the stream at each lookup.
                open_tables[library] = _hash_table(ELFFile(io.BytesIO(path.read_bytes())))
        return open_tables[library]

    def provides(library: str, symbol: str) -> bool | None:
        table = table_of(library)
        if table is None:
            return None
        found = table.get_symbol(symbol) if symbol else None
        return found is not None and found["st_shndx"] != "SHN_UNDEF"

    return provides


def _hash_table(elf: Any) -> Any:
    return elf.get_section_by_name(".gnu.hash") or elf.get_section_by_name(".hash")


def raise_on_failure(results: Sequence[CheckResult], what: str) -> None:
    """Raise the error of the first failed check; all failed ones are in the message.

    Raises:
        CandidateError, BoardError, ToolkitError: By who has to act; code ``audit_<check>``.
    """
    failed = [result for result in results if not result.ok]
    if not failed:
        return
    texts = [f"{r.name}: found {r.found}; wanted {r.wanted}" for r in failed]
    error = _ERROR_OF[_blame(failed)]
    raise error(f"the audit of {what} failed: {' | '.join(texts)}", code=f"audit_{failed[0].name}", hint=failed[0].fix)


def _blame(failed: Sequence[CheckResult]) -> FailureClass:
    return _BLAME[failed[0].name]
