from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ytk_core.abi.ctypes_abi import Table, load_table
from ytk_core.archspec import ArchSpec, host_arch_specs
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_manifest import PluginManifest
from ytk_core.sandbox import SandboxMode, detect
from ytk_forge.build import build_plugin
from ytk_forge.toolchain import Compiler, Toolchain, find_compiler, toolchain_for


@pytest.fixture(scope="session")
def arch() -> ArchSpec:
    return host_arch_specs("ov20264")[0]


@pytest.fixture(scope="session")
def toolchain(arch: ArchSpec) -> Toolchain:
    return toolchain_for(arch)


@pytest.fixture(scope="session")
def compiler(toolchain: Toolchain) -> Compiler:
    return find_compiler(toolchain)


@pytest.fixture(scope="session")
def mode() -> SandboxMode:
    return "required" if detect().kind == "bubblewrap" else "optional"


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for all tests: a bundle that many tests use is compiled once."""
    return tmp_path_factory.mktemp("forge-cache")


Build = Callable[[KernelBundle], tuple[PluginManifest, Path]]


@pytest.fixture(scope="session")
def build(arch: ArchSpec, mode: SandboxMode, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a bundle; gives the manifest and the directory with the results."""

    def run(bundle: KernelBundle) -> tuple[PluginManifest, Path]:
        directory = tmp_path_factory.mktemp("build")
        path = directory / "kernel.module_source.py"
        path.write_text(render_bundle(bundle))
        return build_plugin(path, arch, directory / "out", cache_dir, mode), directory / "out"

    return run


@pytest.fixture(scope="session")
def load(build: Build) -> Callable[[KernelBundle], Table]:
    """Build a bundle and load the library into this process."""
    return lambda bundle: load_table(build(bundle)[1] / "plugin.so")
