"""Kernels built with g++ against ``ytk_kernel.h``, and the engine host library, once per test session."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_kronos import checks, hostlib
from ytk_kronos.engines.base import PluginFile
from ytk_kronos.engines.openvino_engine import OpenVinoEngine

KERNELS = Path(__file__).parent / "kernels"
IDENTITIES = {
    "col2im": ("yasp", "Col2im", "1"),
    "scale": ("yasp", "Scale", "1"),
    "take_rows": ("acme.vision", "TakeRows", "2"),
    "row_max": ("", "RowMax", "1"),
    "identity": ("yasp", "Same", "1"),
}

PluginMaker = Callable[..., PluginFile]


@pytest.fixture(scope="session")
def host_cache() -> Path:
    """The user's own cache: a compilation takes longer than all tests here, and its key holds every byte it depends on."""
    cache = hostlib.default_cache_dir()
    hostlib.ensure_host(cache)
    return cache


@pytest.fixture(scope="session")
def engine(host_cache: Path) -> OpenVinoEngine:
    return OpenVinoEngine(hostlib.ensure_host(host_cache))


@pytest.fixture(scope="session")
def arch() -> ArchSpec:
    return checks.worker_arch_specs()[0]


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> PluginMaker:
    """Gives a kernel library by source name and ``-D`` definitions."""
    directory = tmp_path_factory.mktemp("plugins")

    @functools.cache
    def make(kernel: str, *defines: str) -> PluginFile:
        library = directory / f"{'-'.join((kernel, *defines))}.so".replace("=", "_")
        command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{include_dir()}"]
        command += [*(f"-D{each}" for each in defines), str(KERNELS / f"{kernel}.cpp"), "-o", str(library)]
        subprocess.run(command, check=True, timeout=600)
        namespace, name, version = IDENTITIES[kernel]
        return PluginFile(path=library, namespace=namespace, name=name, version=version)

    return make
