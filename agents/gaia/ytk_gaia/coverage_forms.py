"""The two forms that coverage is measured in: C++ for this machine, and CUDA C++ compiled for a GPU and run on the emulation."""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec, host_arch_specs
from ytk_core.cpu_build import cxx_flags
from ytk_core.cuda import nvrtc
from ytk_core.cuda_build import device_flags
from ytk_core.errors import ToolkitError, YtkError
from ytk_gaia.emulation import build as emulation
from ytk_gaia.emulation.build import Check
from ytk_gaia.evaluator.build import compiler
from ytk_gaia.generator import cuda_schedules, cuda_variants, emit_cpp, emit_cuda
from ytk_gaia.generator.border import Border, EmittedKernel
from ytk_gaia.generator.cpp_printer import runtime_header
from ytk_gaia.generator.cuda_printer import cuda_header
from ytk_gaia.generator.lowering import LoweredRegion
from ytk_gaia.generator.schedules import SCHEDULES

ORIN = "arm64-sm87-dos6010-cu114-trt86"
_LIMIT_S = 600
_SYMBOL = re.compile(r"\bytk_(launch|workspace)\b")
_KERNEL = re.compile(r"\bytk_((?:nest|copy)\d+_\w+)\b")


class Form(Protocol):
    """How an entry's loop IR becomes a library."""

    @property
    def name(self) -> str:
        """Word for ``--form``."""

    def emit(self, region: LoweredRegion, border: Border) -> EmittedKernel:
        """Give the source of one way to run the loops.

        Raises:
            CannotLowerError: There is none.
        """

    def compile(self, sources: Sequence[str], directory: Path, optimise: str) -> str:
        """Compile sources into ``directory/k.so``, whose launchers are ``ytk_launch_<k>``; give the first complaint, or nothing."""


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    return "" if done.returncode == 0 else (errors or [f"the compiler ended with {done.returncode}"])[0]


def _numbered(source: str, count: int) -> str:
    """Give a source beside others: its launcher has a number, everything else a namespace of its own."""
    own = _SYMBOL.sub(rf"ytk_\g<1>_{count}", source)
    return f"namespace kernel{count} {{\n{own}\n}}\n"


class CppForm:
    """C++ for this machine."""

    name = "cpp"

    def __init__(self) -> None:
        self._arch = host_arch_specs("ov20264")[0]

    def emit(self, region: LoweredRegion, border: Border) -> EmittedKernel:
        """Give the source by one of the schedules: by the entry's shapes, so that the whole database tries every one."""
        shapes = repr([t.shape for t in (*border.inputs, *border.outputs)])
        return emit_cpp.emit(region, border, SCHEDULES[zlib.crc32(shapes.encode()) % len(SCHEDULES)])

    def compile(self, sources: Sequence[str], directory: Path, optimise: str) -> str:
        """Compile with the flags of a CPU plugin."""
        text = f'#include "ytk_kernel.h"\n{runtime_header(" ".join(sources))}\n'
        text += "".join(_numbered(source, count) for count, source in enumerate(sources))
        (directory / "k.cpp").write_text(text, encoding="utf-8")
        flags = [*cxx_flags(self._arch), "-fvisibility=default", optimise]
        return _run(
            [compiler(), *flags, "-I", str(include_dir()), str(directory / "k.cpp"), "-o", str(directory / "k.so")]
        )


class CudaForm:
    """CUDA C++: it has to compile for a GPU, and is then run by the emulation."""

    name = "cuda"

    def __init__(self, arch: str = ORIN) -> None:
        self._flags = device_flags(ArchSpec.parse(arch))
        self._nvrtc = nvrtc.find_nvrtc("11.8", "pip install 'yasp-toolkit[forge-cuda]'")
        self._objects: list[Path] = []

    def emit(self, region: LoweredRegion, border: Border) -> EmittedKernel:
        """Give the source by the first schedule, in the captured types."""
        return emit_cuda.emit(region, border, cuda_schedules.SCHEDULES[0], [cuda_variants.captured(border)])

    def compile(self, sources: Sequence[str], directory: Path, optimise: str) -> str:
        """Compile for the GPU, then for the emulation."""
        unit = f'#include "ytk_kernel.h"\n{cuda_header(" ".join(sources))}\n'
        for count, source in enumerate(sources):
            # Kernels are extern "C": a namespace does not tell them apart.
            unit += _numbered(_KERNEL.sub(rf"ytk_{count}_\g<1>", source), count)
        (directory / "kernel.cpp").write_text(unit, encoding="utf-8")
        headers = [include_dir() / name for name in ("ytk_kernel.h", "ytk_cuda.h")]
        try:
            nvrtc.compile_with_nvrtc(
                self._nvrtc, self._flags, headers, directory, mode="optional", log=lambda _text: None
            )
        except YtkError as err:
            return err.message
        source, kinds = (
            str(directory / "kernel.cpp"),
            {"host": emulation.host_flags(), "device": emulation.device_flags(Check.NOTHING)},
        )
        commands = [
            [compiler(), *flags, optimise, "-c", source, "-o", str(directory / f"{kind}.o")]
            for kind, flags in kinds.items()
        ]
        objects = [directory / "host.o", directory / "device.o", *self._runtime(directory.parent)]
        commands.append(emulation.link_command(objects, directory / "k.so", Check.NOTHING))
        return next((problem for command in commands if (problem := _run(command))), "")

    def _runtime(self, directory: Path) -> list[Path]:
        """Give the objects of the emulation's runtime, compiled once."""
        if not all(path.is_file() for path in self._objects) or not self._objects:
            import tempfile

            place = Path(tempfile.mkdtemp(prefix="ytk-emulation-", dir=directory))
            problem = next((p for command in emulation.runtime_commands(place) if (p := _run(command))), "")
            if problem:
                raise ToolkitError(f"the emulation's runtime does not compile here: {problem}", code="emulation_broken")
            self._objects = [place / f"{name}.o" for name in emulation.RUNTIME_UNITS]
        return self._objects


def form(name: str) -> Form:
    """Give a form by its word."""
    return CudaForm() if name == CudaForm.name else CppForm()
