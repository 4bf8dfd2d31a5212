"""The CUDA kernels: they compile for the boards, and on the CPU emulation they agree with the references.

The emulation runs every thread, in several orders; instrumented builds look for accesses outside of the tensors and for
races. No GPU confirmed these kernels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ytk_core.catalogue import ENTRIES, by_operator
from ytk_core.errors import NotAvailableError
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.sandbox import detect
from ytk_forge.build import build_plugin
from ytk_forge.readiness import problems
from ytk_gaia.emulation.build import Check, Emulator
from ytk_gaia.evaluator.device_facts import compile_for, nvrtc_for

from fakes.catalogue_calls import reference
from fakes.catalogue_emulated import Call, run_emulated
from fakes.catalogue_samples import SAMPLES, Sample
from fakes.forge_toolchains import ORIN

pytestmark = pytest.mark.torch
MODE = "required" if detect().kind == "bubblewrap" else "optional"
TARGET = DeploymentTarget.TENSORRT


@pytest.fixture(scope="module")
def emulator(tmp_path_factory) -> Emulator:
    return Emulator.prepare(tmp_path_factory.mktemp("emulation"), MODE)


@pytest.fixture(scope="module")
def library(emulator, tmp_path_factory):
    """Build an entry for the emulation, once per check."""
    built: dict[tuple[str, Check], Path] = {}

    def build(operator: str, check: Check) -> Path:
        if (operator, check) not in built:
            directory = tmp_path_factory.mktemp(operator)
            bundle = by_operator(operator).bundle(TARGET, SAMPLES[operator].attributes)
            found = emulator.build(bundle, directory, [check])[check]
            assert found.library is not None, found.log
            built[operator, check] = found.library
        return built[operator, check]

    return build


def wanted_of(sample: Sample, operator: str, half: bool = False) -> tuple[list[torch.Tensor], Call]:
    """What the reference gives for a variant, and the call without a place in an order."""
    entry = by_operator(operator)
    floats = [half and tensor.dtype is None for tensor in entry.inputs]
    inputs = [t.half() if each else t for t, each in zip(sample.tensors, floats, strict=True)]
    wanted = reference(entry, [t.float() if t.dtype is torch.float16 else t for t in inputs], sample.attributes)
    kinds = [str(tensor.dtype or ("float16" if half else "float32")) for tensor in entry.outputs]
    outputs = [(tuple(each.shape), kind) for each, kind in zip(wanted, kinds, strict=True)]
    return wanted, Call([t.numpy() for t in inputs], outputs, variant=int(half))


@pytest.mark.parametrize("operator", SAMPLES)
def test_values_within_bounds(operator, library, tmp_path):
    entry, sample = by_operator(operator), SAMPLES[operator]
    wanted, call = wanted_of(sample, operator)
    wanted_half, half = wanted_of(sample, operator, half=True)
    calls = [call, replace(call, order=1), half]
    results = run_emulated(library(operator, Check.BOUNDS), entry, sample.attributes, calls, tmp_path)
    assert [status for status, _ in results] == [0, 0, 0]
    (_, forward), (_, backward), (_, rounded) = results
    for mine, theirs in zip(forward, wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), theirs, rtol=1e-3, atol=1e-5)
    assert all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(forward, backward, strict=True))
    for mine, theirs in zip(rounded, wanted_half, strict=True):
        torch.testing.assert_close(torch.from_numpy(mine).to(theirs.dtype), theirs, rtol=4e-3, atol=4e-3)


# Those in which threads meet: atomics, shared memory, one block for all.
@pytest.mark.parametrize("operator", ["sparse_conv3d", "pillar_scatter", "rotated_nms"])
def test_no_race(operator, library, tmp_path):
    sample = SAMPLES[operator]
    _, call = wanted_of(sample, operator)
    path = library(operator, Check.RACES)
    [(status, _)] = run_emulated(path, by_operator(operator), sample.attributes, [call], tmp_path)
    assert status == 0


def test_overflow_leaves_nothing_that_looks_like_a_result(library, tmp_path):
    entry, sample = by_operator("sparse_conv3d"), SAMPLES["sparse_conv3d"]
    wanted, call = wanted_of(sample, "sparse_conv3d")
    active, channels = int(wanted[2]), wanted[0].shape[1]
    outputs = [((active - 1, channels), "float32"), ((active - 1, 4), "int32"), ((1,), "int32")]
    calls = [replace(call, outputs=outputs)]
    path = library("sparse_conv3d", Check.BOUNDS)
    [(status, (values, _, count))] = run_emulated(path, entry, sample.attributes, calls, tmp_path)
    assert status == 0  # nobody waits for a GPU to find out
    assert int(count[0]) == active
    assert np.isnan(values).all()


def test_every_entry_has_a_sample():
    assert set(SAMPLES) == {entry.operator for entry in ENTRIES}


def test_a_plugin_for_the_board_passes_its_audit(tmp_path):
    if missing := problems(ORIN):
        pytest.skip(" ".join(missing))
    path = tmp_path / "kernel.module_source.py"
    path.write_text(render_bundle(by_operator("roi_align").bundle(TARGET, SAMPLES["roi_align"].attributes)))
    manifest = build_plugin(path, ORIN.arch_specs()[0], tmp_path / "out", tmp_path / "cache", MODE, toolchains=[ORIN])
    assert manifest.ok


@pytest.mark.parametrize("operator", SAMPLES)
def test_the_device_code_compiles_for_orin_without_spills(operator, tmp_path):
    arch = ORIN.arch_specs()[0]
    try:
        nvrtc = nvrtc_for(arch)
    except NotAvailableError as err:
        pytest.skip(str(err))
    bundle = by_operator(operator).bundle(TARGET, SAMPLES[operator].attributes)
    _, facts = compile_for(bundle, arch, nvrtc, tmp_path, MODE)
    assert facts.kernels
    assert all(kernel.spill_bytes == 0 for kernel in facts.kernels)
