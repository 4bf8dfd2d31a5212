"""Kernel bundle -> audited plugin library with its manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.cuda_build import device_flags
from ytk_core.digests import digest_bytes, digest_file
from ytk_core.errors import ToolkitError, UserError
from ytk_core.files import atomic_write
from ytk_core.formats.kernel_bundle import KernelBundle, bundle_digest, read_bundle, translation_unit
from ytk_core.formats.plugin_manifest import NOT_TARGET_VERIFIED, PluginManifest, make_manifest, write_plugin_manifest
from ytk_core.formats.plugin_meta import DeploymentTarget, PluginMeta
from ytk_core.sandbox import SandboxMode
from ytk_core.signing import SigningKey, sign_manifest
from ytk_forge.audit import AUDIT_VERSION, audit, raise_on_failure
from ytk_forge.cache import FILES, LOG, MANIFEST, PLUGIN, BuildCache, cache_key
from ytk_forge.compile import LINK_FLAGS, TABLE_FLAGS, Units, build_flags, compile_plugin
from ytk_forge.device.compiler import DeviceTool, find_device_compiler
from ytk_forge.probe import registry
from ytk_forge.render import RENDERER_VERSION, TEMPLATE_DIR, render_skeleton, render_table
from ytk_forge.toolchain import Compiler, Toolchain, find_compiler, toolchain_for
from ytk_forge.trt_headers import TrtHeaders, find_headers

BAD_ARRAY_NEW_LENGTH = (3, 4, 29)
"""The GLIBCXX version of a function that std::vector calls; for older targets it is rendered into the library."""


def build_plugin(
    bundle_path: Path,
    arch: ArchSpec,
    out_dir: Path,
    cache_dir: Path,
    sandbox_mode: SandboxMode = "required",
    *,
    toolchains: Sequence[Toolchain] | None = None,
    log: Callable[[str], None] | None = None,
    signing_key: SigningKey | None = None,
    declared_abi: bool = False,
) -> PluginManifest:
    """Build the plugin library of a kernel bundle for an arch spec.

    Writes ``plugin.so``, ``manifest.json`` and ``build.log`` to ``out_dir`` (made if absent), each atomically and the
    manifest last; on failure none of them. The same bundle, toolchain and compiler give the same bytes.

    Args:
        bundle_path: The kernel bundle; its text is hostile and is compiled and loaded in the sandbox only.
        arch: What to build for.
        out_dir: Where the results go.
        cache_dir: Finished builds by content; may be shared by processes.
        sandbox_mode: "optional" builds without a sandbox where none works.
        toolchains: Instead of the shipped toolchain files.
        log: Gets the build's log text as it comes.
        signing_key: Signs the manifest; None leaves it unsigned. Cached builds are kept unsigned and signed here too.
        declared_abi: Where there are no TensorRT headers, build against an interface declared by hand, and mark the plugin.

    Raises:
        UserError: No toolchain for the arch spec ("unknown_arch"); the bundle is for another kind of target
            ("wrong_deployment_target") or arch ("arch_constraint"); a compile flag is not allowed.
        FormatError: The file is not a kernel bundle.
        NotAvailableError: The toolchain's compiler is missing here.
        CandidateError: The kernel does not compile, link, load, or pass the audit.
        BoardError: No sandbox, no space, compiler killed.
        ToolkitError: The audit found a fault of ours.
    """
    bundle = read_bundle(bundle_path)
    check_target(bundle.meta, arch)
    toolchain = toolchain_for(arch, toolchains)
    tools = Tools(
        compiler=find_compiler(toolchain),
        device=find_device_compiler(toolchain),
        headers=find_headers(toolchain, declared=declared_abi),
    )
    flags = build_flags(toolchain, arch, bundle.meta.compile_flags)
    if tools.device is not None:
        flags += device_flags(arch, bundle.meta.compile_flags)
    cache_dir.mkdir(parents=True, exist_ok=True)
    cache = BuildCache(cache_dir)
    key = _key(bundle, arch, toolchain, tools, flags)
    emit = log or _discard
    if (hit := cache.get(key)) is not None:
        entry, manifest = hit
        emit((entry / LOG).read_text(encoding="utf-8"))
        emit(f"# from the cache: {key}\n")
        return _deliver(entry, manifest, out_dir, signing_key)
    with tempfile.TemporaryDirectory(prefix="ytk-forge-") as directory:
        built = Path(directory) / "built"
        built.mkdir()
        manifest = _build(
            bundle,
            arch,
            toolchain,
            tools,
            flags,
            work=Path(directory),
            built=built,
            cache_dir=cache_dir,
            mode=sandbox_mode,
            log=emit,
        )
        cache.put(key, built)
        return _deliver(built, manifest, out_dir, signing_key)


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """The compilers of a build."""

    compiler: Compiler
    device: DeviceTool | None
    headers: TrtHeaders | None

    def banners(self) -> dict[str, str]:
        """Give tool names and versions for the manifest."""
        found = {"compiler": self.compiler.banner}
        if self.device is not None:
            found["device_compiler"] = self.device.banner
        if self.headers is not None:
            found["tensorrt"] = self.headers.banner
        return found


def check_target(meta: PluginMeta, arch: ArchSpec) -> None:
    """Check that a bundle is meant for an arch spec, before anything is compiled.

    Raises:
        UserError: Another deployment target ("wrong_deployment_target"), or another arch ("arch_constraint").
    """
    wanted = DeploymentTarget.TENSORRT if arch.engine_name == "tensorrt" else DeploymentTarget.CPU
    if meta.deployment_target is not wanted:
        msg = f"the bundle of {meta.plugin_namespace}::{meta.plugin_name} is for deployment target {meta.deployment_target}, but {arch} needs {wanted}"
        hint = f"Generate it with `ytk kernelgen compile --config deployment_target={wanted}`, or build for another arch spec."
        raise UserError(msg, code="wrong_deployment_target", hint=hint)
    differing = [
        f"{field} ({getattr(arch, field)}, the kernel needs {value})"
        for field, value in sorted(meta.constraints.arch.items())
        if getattr(arch, field) != value
    ]
    if differing:
        msg = f"the kernel of {meta.plugin_namespace}::{meta.plugin_name} was made for another arch than {arch}: {', '.join(differing)}"
        raise UserError(
            msg, code="arch_constraint", hint="Build for the arch that it needs, or generate a kernel for this one."
        )


def _build(
    bundle: KernelBundle,
    arch: ArchSpec,
    toolchain: Toolchain,
    tools: Tools,
    flags: list[str],
    *,
    work: Path,
    built: Path,
    cache_dir: Path,
    mode: SandboxMode,
    log: Callable[[str], None],
) -> PluginManifest:
    """Build into ``built``: all ``FILES``."""
    lines: list[str] = []

    def note(text: str) -> None:
        lines.append(text)
        log(text)

    meta = bundle.meta
    what = f"{meta.plugin_namespace}::{meta.plugin_name} for {arch}"
    note(f"# {what}; toolchain {toolchain.name}; {'; '.join(tools.banners().values())}; renderer {RENDERER_VERSION}\n")
    compiled = work / "compile"
    compiled.mkdir()
    done = compile_plugin(
        Units(
            kernel=translation_unit(bundle),
            table=render_table(meta, old_libstdcxx=toolchain.max_glibcxx(arch) < BAD_ARRAY_NEW_LENGTH),
            skeleton=render_skeleton(meta, toolchain.tensorrt.major) if toolchain.tensorrt is not None else None,
        ),
        toolchain=toolchain,
        compiler=tools.compiler,
        arch=arch,
        extra_flags=meta.compile_flags,
        workdir=compiled,
        mode=mode,
        log=note,
        device=tools.device,
        trt_include=Path(tools.headers.include_dir) if tools.headers is not None else None,
    )
    checks = audit(
        done.library,
        meta=meta,
        arch=arch,
        toolchain=toolchain,
        compiler=tools.compiler,
        mode=mode,
        device_log=done.device_log,
        cache_dir=cache_dir,
    )
    for check in checks:
        note(f"# audit {check.name}: {'ok' if check.ok else 'FAILED'}: {check.found}\n")
    raise_on_failure(checks, what)
    done.library.replace(built / PLUGIN)
    manifest = make_manifest(
        arch=arch,
        so_digest=digest_file(built / PLUGIN),
        meta=meta,
        bundle_digest=bundle_digest(bundle),
        toolchain=toolchain.name,
        tools={
            **tools.banners(),
            "flags": " ".join((*flags, *LINK_FLAGS)),
            "renderer": RENDERER_VERSION,
            "audit": AUDIT_VERSION,
        },
        checks=checks,
        unverified=_unverified(arch, toolchain, tools),
    )
    if manifest.meta_digest not in (built / PLUGIN).read_bytes().decode("latin-1"):
        msg = f"the library of {what} does not carry its meta's digest"
        raise ToolkitError(msg, hint="Report this with the build log.")
    write_plugin_manifest(built / MANIFEST, manifest)
    (built / LOG).write_text("".join(lines), encoding="utf-8")
    return manifest


def _unverified(arch: ArchSpec, toolchain: Toolchain, tools: Tools) -> list[str]:
    """Say what no check on this machine can see, so that nobody takes a passed audit for more than it is."""
    found = []
    if tools.headers is not None and tools.headers.declared:
        found.append(
            f"{NOT_TARGET_VERIFIED}: the plugin class was compiled without TensorRT's headers, against an interface declared by hand."
        )
    wanted = toolchain.tensorrt
    if tools.headers is not None and wanted is not None and tools.headers.differs_from(wanted.version):
        found.append(
            f"{NOT_TARGET_VERIFIED}: the plugin class was compiled against headers of TensorRT {tools.headers.version}, the target has {wanted.version}."
        )
    if tools.headers is not None and (why := registry.why_not(toolchain)):
        found.append(f"No real TensorRT registry has loaded it: {why}.")
    if arch.device_kind == "gpu":
        found.append(
            "No GPU ran the kernel when it was built: that it loads, is right and is fast is known on the target only."
        )
    return found


def _key(bundle: KernelBundle, arch: ArchSpec, toolchain: Toolchain, tools: Tools, flags: list[str]) -> str:
    """Give the cache key: every input of the build and of the audit."""
    ours = (path for path in TEMPLATE_DIR.rglob("*") if path.is_file())
    texts = (*sorted(ours), *sorted(include_dir().glob("*.h")))
    text = b"".join(path.read_bytes() for path in texts)
    return cache_key(
        {
            "bundle": bundle_digest(bundle),
            "arch": str(arch),
            "toolchain": msgspec.to_builtins(toolchain),
            "compiler": msgspec.to_builtins(tools.compiler),
            "tools": tools.banners(),
            "registry": registry.identity(toolchain),
            "headers": _headers_digest(tools.headers),
            "flags": [*flags, *TABLE_FLAGS, *LINK_FLAGS],
            "renderer": [RENDERER_VERSION, AUDIT_VERSION, digest_bytes(text)],
        }
    )


def _headers_digest(headers: TrtHeaders | None) -> str:
    """Give the digest of the SDK's headers: an SDK may be replaced in place."""
    if headers is None:
        return ""
    paths = sorted(Path(headers.include_dir).glob("NvInfer*.h"))
    return digest_bytes(b"".join(path.name.encode() + path.read_bytes() for path in paths))


def _deliver(source: Path, manifest: PluginManifest, out_dir: Path, signing_key: SigningKey | None) -> PluginManifest:
    """Copy the results; the manifest last, so that whoever sees it sees the library."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if name != MANIFEST:
            with atomic_write(out_dir / name) as stream:
                stream.write((source / name).read_bytes())
    if signing_key is not None:
        manifest = sign_manifest(manifest, signing_key)
    write_plugin_manifest(out_dir / MANIFEST, manifest)
    return manifest


def _discard(_text: str) -> None:
    """Drop log text: the caller wants none."""
