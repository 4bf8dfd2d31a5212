"""Forge without a controller: list and try toolchains, build a bundle, audit a library."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import click
import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.errors import ExitCode, UserError, YtkError
from ytk_core.files import atomic_write
from ytk_core.formats.plugin_manifest import SUFFIX, CheckResult
from ytk_core.sandbox import SandboxMode, detect
from ytk_forge.check import DIGEST
from ytk_forge.toolchain import Toolchain
from ytk_forge.trt_headers import DECLARED_FLAG

P = ParamSpec("P")

_toolchain_dir = click.option(
    "--toolchain-dir",
    "toolchain_dirs",
    multiple=True,
    envvar="YTK_FORGE_TOOLCHAINS",
    type=click.Path(path_type=Path),
    help="Directory of toolchain files; they come before the shipped ones. Repeatable.",
)
_output = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the answer.",
)
_sandbox = click.option(
    "--sandbox",
    type=click.Choice(["required", "optional"]),
    default="required",
    show_default=True,
    help="What to do where no sandbox works: refuse, or run the compiler and the library without one.",
)
_debug = click.option("--debug", is_flag=True, help="Show the traceback of an error.")


def reports_errors(body: Callable[P, None]) -> Callable[P, None]:
    """Print an error of ours to stderr and exit with its class's code; with ``--debug``, with its traceback."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        debug = bool(kwargs.pop("debug", False))
        try:
            body(*args, **kwargs)
        except YtkError as err:
            if debug:
                raise
            click.echo(f"error: {err.message} [{err.code}]", err=True)
            if err.hint:
                click.echo(f"hint: {err.hint}", err=True)
            sys.exit(err.exit_code)

    return run


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_toolchain_dir
@click.option("--try", "try_all", is_flag=True, help="Also build and audit a small kernel for every arch spec.")
@_output
@_sandbox
@_debug
@reports_errors
def toolchains(
    names: Sequence[str], toolchain_dirs: Sequence[Path], try_all: bool, form: str, sandbox: SandboxMode
) -> None:
    """List the toolchains (or those NAMEd), what they build for, and what is missing to use them.

    Exit code 1 where one that was named is not ready, or none at all is.
    """
    from ytk_forge.readiness import State, problems, state
    from ytk_forge.toolchain import find_compiler, load_toolchains

    rows: list[dict[str, Any]] = []
    loaded = load_toolchains(toolchain_dirs)
    if unknown := sorted(set(names) - {toolchain.name for toolchain in loaded}):
        msg = f"no toolchain {', '.join(map(repr, unknown))}"
        raise UserError(msg, code="unknown_toolchain", hint=f"There are: {', '.join(t.name for t in loaded)}.")
    for toolchain in loaded:
        if names and toolchain.name not in names:
            continue
        missing, status = problems(toolchain), state(toolchain)
        arch_specs = toolchain.arch_specs()
        failed: list[str] = []
        if status is not State.NOT_READY and try_all:
            failed = [text for arch in arch_specs if (text := _try(arch, loaded, sandbox))]
        rows.append(
            {
                "name": toolchain.name,
                "description": toolchain.description,
                "ready": status is not State.NOT_READY and not failed,
                "target_verified": status is State.READY,
                "compiler": "" if status is State.NOT_READY else find_compiler(toolchain).banner,
                "tools": {} if status is State.NOT_READY else _tools(toolchain),
                "arch_specs": [str(arch) for arch in arch_specs],
                "missing": [*missing, *failed],
            }
        )
    if form == "json":
        click.echo(_json({"sandbox": detect().kind, "tried": try_all, "toolchains": rows}))
    else:
        for row in rows:
            _show_toolchain(row, try_all)
        found = detect()
        click.echo(f"sandbox: {found.kind} ({found.reason})", err=True)
    if not (all if names or try_all else any)(row["ready"] for row in rows):
        sys.exit(ExitCode.VERDICT)


def _try(arch: ArchSpec, loaded: Sequence[Any], sandbox: SandboxMode) -> str:
    """Give what went wrong with the self-test for one arch spec; empty: nothing."""
    from ytk_forge.selftest import selftest

    try:
        selftest(arch, loaded, sandbox, declared_abi=True)
    except YtkError as err:
        return f"{arch}: {err.message}. {err.hint}"
    return ""


def _tools(toolchain: Toolchain) -> dict[str, str]:
    """Give what a build would use beside the compiler, by kind."""
    from ytk_forge.device.compiler import find_device_compiler
    from ytk_forge.trt_headers import find_headers

    found = {"device code": find_device_compiler(toolchain), "TensorRT": find_headers(toolchain, declared=True)}
    return {kind: tool.banner for kind, tool in found.items() if tool is not None}


def _show_toolchain(row: dict[str, Any], tried: bool) -> None:
    word = ("works" if tried else "ready") if row["ready"] else "NOT READY"
    if row["ready"] and not row["target_verified"]:
        word += f", only with {DECLARED_FLAG}: NOT TARGET-VERIFIED"
    click.echo(f"{row['name']}  {word}  {row['compiler']}".rstrip())
    click.echo(f"  {row['description']}")
    for arch in row["arch_specs"]:
        click.echo(f"  -a {arch}")
    for kind, banner in row["tools"].items():
        click.echo(f"  {kind}: {banner}")
    for text in row["missing"]:
        first, *more = text.splitlines()
        click.echo(f"  missing: {first}")
        for line in more:
            click.echo(f"           {line}")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-a", "--arch", "arch_spec", required=True, help="Arch spec to build for.")
@click.option(
    "-o",
    "--out",
    "library",
    type=click.Path(path_type=Path),
    required=True,
    help="The .so to write; its manifest goes beside it.",
)
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Keep and reuse builds here.")
@click.option("--signing-key", type=click.Path(path_type=Path), help="Sign the manifest with this private key.")
@click.option(
    DECLARED_FLAG,
    is_flag=True,
    help="Where there are no TensorRT headers: build against an interface declared by hand; the plugin is marked.",
)
@_toolchain_dir
@_sandbox
@_debug
@reports_errors
def build(
    bundle: Path,
    arch_spec: str,
    library: Path,
    cache_dir: Path | None,
    signing_key: Path | None,
    declared_abi: bool,
    toolchain_dirs: Sequence[Path],
    sandbox: SandboxMode,
) -> None:
    """Build and audit the plugin library of a kernel BUNDLE on this machine."""
    from ytk_core.signing import load_key
    from ytk_forge.build import build_plugin
    from ytk_forge.cache import MANIFEST, PLUGIN
    from ytk_forge.toolchain import load_toolchains

    arch = ArchSpec.parse(arch_spec)
    signer = load_key(signing_key) if signing_key else None
    with tempfile.TemporaryDirectory(prefix="ytk-forge-build-") as directory:
        out = Path(directory) / "out"
        manifest = build_plugin(
            bundle,
            arch,
            out,
            cache_dir or Path(directory) / "cache",
            sandbox,
            toolchains=load_toolchains(toolchain_dirs),
            log=lambda text: click.echo(text, err=True, nl=False),
            signing_key=signer,
            declared_abi=declared_abi,
        )
        # The manifest last: whoever sees it sees the library.
        for source, destination in ((PLUGIN, library), (MANIFEST, library.with_name(library.name + SUFFIX))):
            with atomic_write(destination) as stream:
                stream.write((out / source).read_bytes())
    click.echo(
        f"{library}  {manifest.meta.plugin_namespace}::{manifest.meta.plugin_name}  {arch}  {manifest.so_digest}"
        + manifest.mark
    )
    for text in manifest.unseen:
        click.echo(f"note: {text}", err=True)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@_debug
@reports_errors
def key(path: Path) -> None:
    """Print the public key that belongs to the signing key in the file PATH; make the key if there is none.

    The line goes into the trusted keys of those who load what this Forge builds.
    """
    from ytk_core.signing import load_or_create_key

    public = load_or_create_key(path).public
    click.echo(f"{public} {public.key_id}")


@click.command()
@click.argument("library", type=click.Path(path_type=Path))
@click.option("--manifest", type=click.Path(path_type=Path), help="Its manifest; default: the one beside it.")
@click.option("-a", "--arch", "arch_spec", help="Audit for this arch spec instead of the manifest's.")
@click.option(
    "--trusted-keys",
    type=click.Path(path_type=Path),
    help="File of public keys: the manifest must be signed by one of them, before anything is loaded.",
)
@_toolchain_dir
@_output
@_sandbox
@_debug
@reports_errors
def check(
    library: Path,
    manifest: Path | None,
    arch_spec: str | None,
    trusted_keys: Path | None,
    toolchain_dirs: Sequence[Path],
    form: str,
    sandbox: SandboxMode,
) -> None:
    """Audit a plugin LIBRARY again and compare it with its manifest. Exit code 1 where a check fails."""
    from ytk_core.signing import read_trusted_keys, verify_manifest
    from ytk_forge.check import check_library, read_manifest_for
    from ytk_forge.toolchain import load_toolchains

    claimed = read_manifest_for(library, manifest)
    if trusted_keys:
        verify_manifest(claimed, library, read_trusted_keys(trusted_keys))
    results = check_library(
        library,
        claimed,
        toolchains=load_toolchains(toolchain_dirs),
        arch=ArchSpec.parse(arch_spec) if arch_spec else None,
        mode=sandbox,
    )
    if form == "json":
        click.echo(_json({"library": str(library), "checks": msgspec.to_builtins(results)}))
    else:
        _show_checks(results)
        for text in claimed.unseen:
            click.echo(f"note: {text}", err=True)
    if not all(result.ok for result in results):
        sys.exit(ExitCode.VERDICT)


@click.command()
@click.argument("library", type=click.Path(path_type=Path))
@click.option("--signing-key", type=click.Path(path_type=Path), required=True, help="Sign with this private key.")
@click.option("--manifest", type=click.Path(path_type=Path), help="Its manifest; default: the one beside it.")
@_toolchain_dir
@_sandbox
@_debug
@reports_errors
def sign(
    library: Path, signing_key: Path, manifest: Path | None, toolchain_dirs: Sequence[Path], sandbox: SandboxMode
) -> None:
    """Audit a plugin LIBRARY that was built elsewhere and sign its manifest, which is written again.

    Whoever trusts this key then loads the library. Exit code 1, and nothing written, where a check fails.
    """
    from ytk_core.formats.plugin_manifest import write_plugin_manifest
    from ytk_core.signing import load_key, sign_manifest
    from ytk_forge.check import check_library, find_manifest, read_manifest_for
    from ytk_forge.toolchain import load_toolchains

    signer = load_key(signing_key)
    path = manifest or find_manifest(library)
    claimed = read_manifest_for(library, path)
    results = check_library(library, claimed, toolchains=load_toolchains(toolchain_dirs), mode=sandbox)
    if not all(result.ok for result in results):
        _show_checks(results)
        sys.exit(ExitCode.VERDICT)
    # The digest is a field of the manifest and no check of the audit. What this audit saw is what is vouched for.
    seen = tuple(result for result in results if result.name != DIGEST)
    signed = sign_manifest(msgspec.structs.replace(claimed, checks=seen), signer)
    write_plugin_manifest(path, signed)
    click.echo(f"{path}  signed with key {signer.public.key_id}")


def _show_checks(results: Sequence[CheckResult]) -> None:
    width = max(len(result.name) for result in results)
    for result in results:
        click.echo(f"{'ok    ' if result.ok else 'FAILED'}  {result.name:<{width}}  {result.found}")
        if not result.ok:
            click.echo(f"{'':<{width + 10}}wanted: {result.wanted}")
            click.echo(f"{'':<{width + 10}}fix: {result.fix}")
    failed = sum(not result.ok for result in results)
    click.echo(f"{len(results) - failed} of {len(results)} checks passed", err=True)


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
