"""Plugins: the ``.so`` as bytes and the manifest beside it. It is never loaded: a library runs code when it is."""

from __future__ import annotations

from pathlib import Path

from ytk_client.inspection.contract import arch_findings, contract_fields, contract_findings, contract_tables
from ytk_client.inspection.elf import CPU_OF_MACHINE, ElfFacts, read_elf
from ytk_client.inspection.findings import Finding, Inspection, Severity, Table, ordered
from ytk_client.inspection.request import Request
from ytk_client.plugins import manifest_path
from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_file
from ytk_core.errors import FormatError
from ytk_core.formats.plugin_manifest import NOT_TARGET_VERIFIED, PluginManifest, read_plugin_manifest

_ENTRY = "ytk_plugin"
_TENSORRT_ENTRIES = ("getCreators", "getPluginCreators", "initLibNvInferPlugins")
_WITH_HEADERS = (
    "Build it with a Forge that has the headers of the target's TensorRT: `ytk-forge toolchains` says how to get them."
)
_BUILD_AGAIN = "Build the plugin again with `ytk embedded build-plugin`."


def inspect_plugin(path: Path, request: Request) -> Inspection:
    """Say what a plugin is, from its manifest where there is one, else from the ELF file alone.

    Raises:
        FormatError: There is no manifest and the file is damaged, or the manifest is.
    """
    beside = manifest_path(path)
    if not beside.is_file():
        return _bare(path, read_elf(path), request)
    manifest = read_plugin_manifest(beside)
    same = digest_file(path) == manifest.so_digest
    findings: list[Finding] = []
    facts: ElfFacts | None = None
    try:
        facts = read_elf(path)
    except FormatError as err:
        # Whoever audited these bytes has seen more than we do; a changed file is a finding of its own.
        findings.append(Finding(kind="elf", severity=Severity.NOTE, message=err.message, fix=_BUILD_AGAIN))
    findings += _manifest_findings(manifest, same, facts, request)
    checks = tuple(
        (check.name, "ok" if check.ok else "FAILED", check.found, check.wanted, check.fix or None)
        for check in manifest.checks
    )
    signer = getattr(manifest.signature, "key_id", None)
    return Inspection(
        kind="plugin",
        content={"manifest": manifest, "matches_manifest": same, "elf": facts},
        fields=(
            ("arch spec", manifest.arch_spec),
            ("toolchain", manifest.toolchain + manifest.mark),
            ("this file", "the audited one" if same else f"NOT the audited one ({manifest.so_digest})"),
            ("signed by", signer or "nobody"),
            *(() if facts is None else _elf_fields(facts)),
            *contract_fields(manifest.meta),
        ),
        tables=(
            *contract_tables(manifest.meta),
            Table(title="Checks", columns=("CHECK", "RESULT", "FOUND", "WANTED", "FIX"), rows=checks),
        ),
        findings=ordered(findings),
        target=str(request.arch or ""),
    )


def _manifest_findings(manifest: PluginManifest, same: bool, facts: ElfFacts | None, request: Request) -> list[Finding]:
    found = []
    if not same:
        found.append(
            Finding(
                kind="digest",
                severity=Severity.ERROR,
                message=f"the file is not the audited one, whose digest is {manifest.so_digest}",
                fix=_BUILD_AGAIN,
            )
        )
    found += [
        Finding(
            kind=f"check-{check.name}",
            severity=Severity.ERROR,
            message=f"the audit failed: found {check.found}, wanted {check.wanted}",
            fix=check.fix or _BUILD_AGAIN,
        )
        for check in manifest.checks
        if not check.ok
    ]
    cpu = ArchSpec.parse(manifest.arch_spec).cpu
    if facts is not None and CPU_OF_MACHINE.get(facts.machine) != cpu:
        found.append(
            Finding(
                kind="machine",
                severity=Severity.ERROR,
                message=f"the file is for {facts.machine}, its manifest says {cpu}",
                fix=_BUILD_AGAIN,
            )
        )
    found += [
        Finding(
            kind="unverified",
            severity=Severity.WARNING if text.startswith(NOT_TARGET_VERIFIED) else Severity.NOTE,
            message=text,
            fix=_WITH_HEADERS if text.startswith(NOT_TARGET_VERIFIED) else "Only the target can tell.",
        )
        for text in manifest.unseen
    ]
    fix = f"Build it for this target: ytk embedded build-plugin -a {request.arch} ..."
    return [
        *found,
        *arch_findings(manifest.arch_spec, request, "plugin", fix),
        *contract_findings(manifest.meta, request),
    ]


def _elf_fields(facts: ElfFacts) -> tuple[tuple[str, object], ...]:
    fields: tuple[tuple[str, object], ...] = (("machine", f"{facts.machine}, {facts.bits} bits"),)
    if not facts.complete:
        return fields
    return (
        *fields,
        ("needs", ", ".join(facts.needed) or "no library"),
        ("symbol versions", ", ".join(facts.versions) or "none"),
        ("exports", ", ".join(facts.exported[:8]) + (" ..." if len(facts.exported) > 8 else "")),
        ("device code", "yes" if facts.device_code else "no"),
    )


def _bare(path: Path, facts: ElfFacts, request: Request) -> Inspection:
    """Describe a library that has no manifest."""
    name = manifest_path(path).name
    found = [
        Finding(
            kind="no-manifest",
            severity=Severity.WARNING,
            message=f"no manifest beside it ({name} is missing), so nobody can tell which plugin it is",
            fix="`ytk embedded build-plugin` writes both; copy the manifest along with the .so.",
        )
    ]
    if not facts.shared:
        found.append(
            Finding(
                kind="not-shared",
                severity=Severity.ERROR,
                message="an ELF file, but not a shared library",
                fix="Link it with -shared.",
            )
        )
    if facts.complete and not {_ENTRY, *_TENSORRT_ENTRIES} & set(facts.exported):
        found.append(
            Finding(
                kind="no-entry",
                severity=Severity.ERROR,
                message=f"it exports neither {_ENTRY} nor {', '.join(_TENSORRT_ENTRIES)}, so no engine finds a plugin in it",
                fix=_BUILD_AGAIN,
            )
        )
    if request.arch is not None and CPU_OF_MACHINE.get(facts.machine) != request.arch.cpu:
        found.append(
            Finding(
                kind="machine",
                severity=Severity.ERROR,
                message=f"the file is for {facts.machine}; {request.arch} is {request.arch.cpu}",
                fix=f"Build it for this target: ytk embedded build-plugin -a {request.arch} ...",
            )
        )
    if not facts.complete:
        found.append(
            Finding(
                kind="elf",
                severity=Severity.NOTE,
                message="only the ELF header was read: pyelftools is not installed",
                fix="pip install pyelftools",
            )
        )
    return Inspection(
        kind="library",
        content={"elf": facts},
        fields=_elf_fields(facts),
        findings=ordered(found),
        target=str(request.arch or ""),
    )
