"""Builds a CUDA candidate for the GPU of this machine: a cubin, and a library that calls it through the driver API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from ytk_core.abi import include_dir
from ytk_core.archspec import ArchSpec
from ytk_core.cuda.nvrtc import Nvrtc
from ytk_core.errors import CandidateError, UserError
from ytk_core.formats.kernel_bundle import KernelBundle
from ytk_core.formats.plugin_meta import FORMAT_NUMBER
from ytk_core.sandbox import SandboxMode, SandboxPolicy, wrap
from ytk_gaia.evaluator import candidate_runner
from ytk_gaia.evaluator.build import COMPILE_LIMIT_S, Built, child_mark, compiler, judged_unit, run_limited
from ytk_gaia.evaluator.cuda_device import device_nodes
from ytk_gaia.evaluator.device_facts import DeviceFacts, compile_for
from ytk_gaia.evaluator.verdicts import Verdict

LIBCUDA = "libcuda.so.1"
"""The driver's library: a name that the loader finds, or (in tests) a path."""
_GIB = 1 << 30
_WRAPPER = """
#include "gpu_entry.h"
extern "C" int ytk_gpu_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {{
  static const int32_t formats[][{tensors}] = {{{formats}}};
  const int variant = ctx->threads - 1;
  if (variant < 0 || variant >= {variants} || nin + nout > {tensors}) return YTK_BAD_VARIANT;
  return ytk_gpu::call(ctx, in, nin, out, nout, formats[variant], {launch});
}}
extern "C" int64_t ytk_gpu_workspace(const ytk_context* ctx, const ytk_tensor* in, int nin, const ytk_tensor* out, int nout) {{
  ytk_context own = *ctx;
  own.variant = ctx->threads - 1;
  (void)in; (void)nin; (void)out; (void)nout;
  return {asked};
}}
"""


def variant_code(variant: int) -> int:
    """Give the thread count that says a variant: a GPU kernel has no use for the number itself."""
    return 1 + variant


def unit(bundle: KernelBundle) -> str:
    """Give the text that is compiled: the launcher's half of the bundle, and the judge's side round it."""
    launcher = bundle.meta.launcher
    asked = f"{launcher.workspace}(&own, in, nin, out, nout)" if launcher.workspace else "0"
    rows = [[FORMAT_NUMBER[t.format] for t in (*v.inputs, *v.outputs)] for v in bundle.meta.variants]
    wrapper = _WRAPPER.format(
        launch=launcher.launch,
        asked=asked,
        variants=len(rows),
        tensors=len(rows[0]),
        formats=", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows),
    )
    own = msgspec.structs.replace(launcher, launch="ytk_gpu_launch", workspace="ytk_gpu_workspace")
    meta = msgspec.structs.replace(bundle.meta, launcher=own)
    return judged_unit(KernelBundle(header=bundle.header, source=bundle.source + wrapper, meta=meta))


def build(
    bundle: KernelBundle, arch: ArchSpec, nvrtc: Nvrtc, device: int, directory: Path, mode: SandboxMode
) -> tuple[Built, DeviceFacts | None, Verdict | None]:
    """Compile a candidate for a GPU and its launcher for this machine, in the sandbox.

    Args:
        bundle: Parsed; nothing in it is trusted.
        arch: What the device code is compiled for.
        nvrtc: The device compiler.
        device: Index of the GPU that it will run on.
        directory: Exists, belongs to this candidate alone; gets ``kernel.so`` and ``kernel.cubin``.
        mode: Whether a sandbox is required.

    Returns:
        The library or why there is none, the facts of the cubin, and the verdict where it did not compile.
    """
    started = time.monotonic()
    (directory / "device").mkdir()
    try:
        cubin, facts = compile_for(bundle, arch, nvrtc, directory / "device", mode)
    except CandidateError as err:
        verdict = Verdict.TIMEOUT if err.code == "compile_timeout" else Verdict.COMPILE_ERROR
        return Built(None, err.message, time.monotonic() - started), None, verdict
    except UserError as err:
        if err.code != "flag_not_allowed":
            raise  # the arch spec or the machine, not the candidate
        return Built(None, err.message, time.monotonic() - started), None, Verdict.COMPILE_ERROR
    (directory / "kernel.cubin").write_bytes(cubin)
    source, library = directory / "kernel.cpp", directory / "kernel.so"
    source.write_text(unit(bundle), encoding="utf-8")
    ours = Path(str(resources.files("ytk_gaia") / "cuda"))
    defines: Mapping[str, str] = {
        "YTK_CUBIN": f'"{directory / "kernel.cubin"}"',
        "YTK_DEVICE": str(device),
        "YTK_LIBCUDA": f'"{LIBCUDA}"',
    }
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-w", *(f"-D{name}={value}" for name, value in defines.items())]
    argv = [compiler(), *flags, "-I", str(include_dir()), "-I", str(ours), str(source), "-ldl", "-o", str(library)]
    policy = SandboxPolicy(
        read_only=(include_dir(), ours),
        read_write=(directory,),
        memory_bytes=4 * _GIB,
        file_bytes=256 << 20,
        processes=32,
        cpu_s=COMPILE_LIMIT_S,
    )
    status, log = run_limited(wrap(argv, policy, mode, env=child_mark()), COMPILE_LIMIT_S)
    seconds = time.monotonic() - started
    if status == 0 and library.is_file() and not library.is_symlink():
        return Built(library, log, seconds), facts, None
    verdict = Verdict.TIMEOUT if status is None else Verdict.COMPILE_ERROR
    return Built(None, log or f"the compiler ended with {status}", seconds, timed_out=status is None), facts, verdict


def run_policy(library: Path) -> SandboxPolicy:
    """Give what a candidate's process may use: the GPU's device nodes, and address space without a limit.

    The driver reserves address space by the terabyte, so that what holds here is the wall limit; see ``docs`` for what a sandbox does
    not isolate on a GPU.
    """
    driver = Path(LIBCUDA)
    return SandboxPolicy(
        read_only=(library.parent, Path(candidate_runner.__file__), *([driver.parent] if driver.is_absolute() else [])),
        devices=device_nodes(),
        file_bytes=1 << 20,
        tmp_bytes=64 << 20,
        processes=256,
        cpu_s=600,
    )
