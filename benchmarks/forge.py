"""How long Forge takes for a plugin of an Orin, and whether the same input gives the same bytes: ``python -m benchmarks.forge``.

``-a ARCH`` for another target, ``--toolchain-dir DIR`` for toolchain files with an SDK's headers. The kernel is the self-test's, which has
device code, a launcher, the rendered table and the plugin class. *Warm*: the tools that all builds share (probe program, driver stub)
are there, the bundle is new. *Cached*: the same bundle again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ytk_core.archspec import ArchSpec
from ytk_core.confined import run_confined
from ytk_core.cuda import nvrtc
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_forge import build as builds
from ytk_forge import compile as compiles
from ytk_forge.probe import run as probe
from ytk_forge.selftest import selftest_bundle
from ytk_forge.toolchain import load_toolchains

from benchmarks._report import show, time_command

ARCH = "arm64-sm87-l4t364-cu126-trt103"
RUNS = 7
TARGET_WARM_S, TARGET_CACHED_S = 4.0, 0.1


class Clock:
    """Seconds spent in the programs that a build starts, by kind."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        for module, kind in ((compiles, "g++"), (nvrtc, "device compiler"), (probe, "probe")):
            module.run_confined = self._timed(kind)  # type: ignore[attr-defined]

    def _timed(self, kind: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return run_confined(*args, **kwargs)
            finally:
                self.spent[kind] = self.spent.get(kind, 0.0) + time.perf_counter() - started

        return run


def bundle(arch: ArchSpec, number: int) -> KernelBundle:
    """Give the self-test's bundle as a version of its own: nothing of an earlier build can be reused."""
    made = selftest_bundle(arch.device_kind)
    return msgspec.structs.replace(made, meta=msgspec.structs.replace(made.meta, plugin_version=str(number)))


def main() -> None:
    """Build, time, compare."""
    options = argparse.ArgumentParser()
    options.add_argument("-a", "--arch", default=ARCH)
    options.add_argument("--toolchain-dir", type=Path, action="append", default=[])
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    arch, toolchains = ArchSpec.parse(given.arch), load_toolchains(given.toolchain_dir)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="ytk-bench-") as directory:
        work = Path(directory)

        def build(number: int, cache: str = "cache") -> tuple[float, str]:
            source = work / "kernel.module_source.py"
            source.write_text(render_bundle(bundle(arch, number)), encoding="utf-8")
            started = time.perf_counter()
            made = builds.build_plugin(
                source, arch, work / "out", work / cache, "optional", toolchains=toolchains, declared_abi=True
            )
            return time.perf_counter() - started, made.so_digest

        first, digest = build(0)
        clock.spent.clear()
        warm = [build(number)[0] for number in range(1, given.runs + 1)]
        parts = {kind: seconds / given.runs for kind, seconds in clock.spent.items()}
        cached = [build(0)[0] for _ in range(given.runs)]
        _, again = build(0, "another-cache")
        # What a person waits for: an interpreter, its imports, and the same answer from the cache.
        command = [
            sys.executable,
            "-m",
            "ytk_forge.main",
            "build",
            str(work / "kernel.module_source.py"),
            "-a",
            str(arch),
        ]
        command += ["-o", str(work / "plugin.so"), "--cache-dir", str(work / "another-cache"), "--declared-abi"]
        command += ["--sandbox", "optional", *(f"--toolchain-dir={path}" for path in given.toolchain_dir)]
        process = [time_command(command).wall_s for _ in range(given.runs)]
    rows: list[dict[str, object]] = [
        {"build": "first on this machine", "s (median)": first, "s (max)": first, "target s": ""},
        {"build": "warm", "s (median)": statistics.median(warm), "s (max)": max(warm), "target s": TARGET_WARM_S},
        {"build": "cached", "s (median)": statistics.median(cached), "s (max)": max(cached), "target s": TARGET_CACHED_S},
        {"build": "cached, `ytk-forge build` as a process", "s (median)": statistics.median(process), "s (max)": max(process), "target s": ""},
        *({"build": f"of a warm one: {kind}", "s (median)": each, "s (max)": "", "target s": ""} for kind, each in parts.items()),
    ]  # fmt: skip
    total = statistics.median(warm)
    share = (parts.get("g++", 0.0) + parts.get("device compiler", 0.0)) / total
    rows.append({"build": "ratio: warm to its compilers alone", "s (median)": 1 / share, "s (max)": "", "target s": ""})
    rows.append(
        {
            "build": "same bytes from an empty cache",
            "s (median)": "yes" if again == digest else "NO",
            "s (max)": "",
            "target s": "",
        }
    )
    show(f"Forge, {arch}", rows)


if __name__ == "__main__":
    main()
