"""Contracts and manifests for the hand-written kernels of Kronos's tests, as Forge would write them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_bytes, digest_file
from ytk_core.dtypes import DType
from ytk_core.formats.plugin_manifest import SUFFIX, CheckResult, make_manifest, write_plugin_manifest
from ytk_core.formats.plugin_meta import (
    AttributeDecl,
    AttributeType,
    DeploymentTarget,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    TensorType,
    Tolerance,
    Variant,
)

F32 = TensorType(dtype=DType.FLOAT32)
PASSED = CheckResult(name="exports", ok=True, found="ytk_plugin", wanted="ytk_plugin")


def same_meta(**changes: Any) -> PluginMeta:
    """The contract of the kernel ``identity``: [N, 4] float32 to the same."""
    meta = PluginMeta(
        schema_version=1,
        plugin_namespace="yasp",
        plugin_name="Same",
        plugin_version="1",
        deployment_target=DeploymentTarget.CPU,
        inputs=[InputDecl(name="x", rank=2, dims=[None, None])],
        outputs=[OutputDecl(name="y", rank=2, shape=["in0.d0", "in0.d1"])],
        variants=[Variant(id="only", inputs=[F32], outputs=[F32])],
        launcher=Launcher(),
        tolerance=Tolerance(rtol=1e-5, atol=1e-6, source="hand"),
        generator=Generator(name="hand", version="1", strategy="hand"),
        region_digest=digest_bytes(b"same"),
    )
    return msgspec.structs.replace(meta, **changes)


def scale_meta() -> PluginMeta:
    """The contract of the kernel ``scale``."""
    return same_meta(
        plugin_name="Scale",
        launcher=Launcher(workspace="ytk_workspace"),
        attributes=[
            AttributeDecl(name="scale", type=AttributeType.FLOATS),
            AttributeDecl(name="shift", type=AttributeType.INTS, required=False),
            AttributeDecl(name="mode", type=AttributeType.STRING, required=False),
        ],
    )


def delivered(
    library: Path, meta: PluginMeta, directory: Path, arch: ArchSpec, checks: tuple[CheckResult, ...] = (PASSED,)
) -> Path:
    """Put a library with its manifest into a directory and give the library's path there."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{meta.plugin_name}.so"
    shutil.copyfile(library, target)
    manifest = make_manifest(
        arch=arch,
        so_digest=digest_file(target),
        meta=meta,
        bundle_digest=digest_bytes(b"bundle"),
        toolchain="test",
        tools={"g++": "test"},
        checks=checks,
    )
    write_plugin_manifest(target.with_name(target.name + SUFFIX), manifest)
    return target
