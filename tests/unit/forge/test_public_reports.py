"""Kinds of public reports that only a built library shows: each is stopped where it is built, with the reason and the fix.

Those that a node and a contract show are in tests/integration/client/test_public_reports.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.errors import CandidateError
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_forge.audit import read_library, static_checks
from ytk_forge.build import build_plugin
from ytk_forge.device.checks import device_checks
from ytk_forge.readiness import problems

from fakes import cuda_bundles
from fakes import kernel_bundles as bundles
from fakes.forge_toolchains import TRT10, TRT86

needs_nvrtc = pytest.mark.skipif(bool(problems(TRT10)), reason=" ".join(problems(TRT10)))


@pytest.fixture
def attempt(tmp_path, cache_dir, mode):
    def run(bundle: KernelBundle, arch: ArchSpec, toolchain=None) -> Path:
        path = tmp_path / "kernel.module_source.py"
        path.write_text(render_bundle(bundle))
        chosen = [toolchain] if toolchain is not None else None
        build_plugin(path, arch, tmp_path / "out", cache_dir, mode, toolchains=chosen)
        return tmp_path / "out" / "plugin.so"

    return run


@needs_nvrtc
def test_get_plugin_creators_but_no_get_creators(attempt):
    """A plugin of TensorRT 8 given to TensorRT 10: nothing is registered, and nothing is said."""
    library = attempt(cuda_bundles.fold(), TRT86.arch_specs()[0], TRT86)
    found = static_checks(read_library(library), arch=TRT10.arch_specs()[0], toolchain=TRT10, provides=lambda *_: True)
    exports = next(check for check in found if check.name == "exports")
    assert not exports.ok
    assert "getPluginCreators" in exports.found
    assert "getCreators" in exports.wanted
    assert exports.fix


@needs_nvrtc
def test_a_kernel_template_that_nobody_instantiates(attempt):
    """'undefined symbol' or 'named symbol not found' at run time."""
    bundle = cuda_bundles.fold()
    source = bundle.source.replace(
        'extern "C" __global__ void fold_f16(const ytk_half* x, ytk_half* y, int64_t count) { fold(x, y, count); }',
        "template <class T> __global__ void fold_of(const T* x, T* y, int64_t count) { fold(x, y, count); }",
    )
    assert source != bundle.source
    with pytest.raises(CandidateError, match="the cubin lacks fold_f16") as caught:
        attempt(msgspec.structs.replace(bundle, source=source), TRT10.arch_specs()[0], TRT10)
    assert caught.value.code == "audit_kernels"
    assert "a template has to be instantiated" in caught.value.hint


@needs_nvrtc
def test_no_kernel_image_is_available(attempt):
    """Error 209: the library has device code for another GPU."""
    library = attempt(cuda_bundles.fold(), TRT10.arch_specs()[0], TRT10)
    other = ArchSpec.parse("arm64-sm87-l4t364-cu126-trt103")
    sm = next(check for check in device_checks(library, arch=other) if check.name == "cubin_sm")
    assert (sm.ok, sm.found, sm.wanted) == (False, "sm_90", "sm_87")
    assert "no kernel image is available" in sm.fix


def test_glibc_2_34_not_found(attempt, arch):
    """Linked where the compiler's C library is newer than the board's."""
    bundle = bundles.fold()
    source = (
        bundle.source
        + """
extern "C" int pthread_mutexattr_init(void*);  // a function of libc itself since 2.34
extern "C" int newer(void* p) __attribute__((used, visibility("hidden")));
extern "C" int newer(void* p) { return pthread_mutexattr_init(p); }
"""
    )
    old = ArchSpec(arch.cpu, arch.device, arch.os, "glibc231", arch.engine)
    with pytest.raises(
        CandidateError, match=r"glibc: found GLIBC_2\.34 of libc\.so\.6; wanted at most GLIBC_2\.31"
    ) as caught:
        attempt(msgspec.structs.replace(bundle, source=source), old)
    assert caught.value.code == "audit_glibc"
    assert "an arch spec with a newer runtime" in caught.value.hint
