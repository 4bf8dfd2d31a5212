"""The bundle of deployment target ``torch``, built and called as a torch extension."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from ytk_core.abi import include_dir
from ytk_core.archspec import host_arch_specs
from ytk_core.formats.kernel_bundle import parse_bundle, translation_unit
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_gaia.generator import region_input
from ytk_gaia.generator.bundle import BundleContext, candidate_text
from ytk_gaia.generator.samples import build_task
from ytk_gaia.generator.strategies import generate_candidates

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


class Region(torch.nn.Module):
    def forward(self, x, w, i):
        return torch.softmax(x @ w, -1), x.sort(-1)[0], i + 1


def build(text: str, directory: Path):
    """Compile as torch.utils.cpp_extension would, without ninja."""
    root = Path(torch.__file__).parent
    source, library = directory / "scale.cpp", directory / "scale.so"
    source.write_text(text)
    includes = [include_dir(), root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-fopenmp", "-DYTK_TORCH_EXTENSION"]
    command += ["-DTORCH_EXTENSION_NAME=scale", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [word for path in includes for word in ("-isystem", str(path))]
    command += [
        str(source),
        "-o",
        str(library),
        f"-L{root / 'lib'}",
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
        "-ltorch_python",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    spec = importlib.util.spec_from_file_location("scale", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bundle_is_a_torch_extension_and_a_plain_kernel(tmp_path):
    torch.manual_seed(3)
    args = (torch.randn(4, 6), torch.randn(6, 5), torch.arange(3))
    program = torch.export.export(Region(), args)
    region = region_input.bind(program, region_input.derive_spec(program, "Scale"))
    (kernel,), _ = generate_candidates(region, ["loops"], host_arch_specs("ov20264")[0], 1)
    task = build_task(region, seed=0, longest_reduction=6)
    bundle = parse_bundle(candidate_text(kernel, BundleContext(region, task.spec, DeploymentTarget.TORCH, 0)))
    assert bundle.meta.deployment_target is DeploymentTarget.TORCH
    assert bundle.source.count("#ifdef YTK_TORCH_EXTENSION") == 1
    module = build(translation_unit(bundle), tmp_path)
    got = module.forward([args[0].T.contiguous().T, args[1], args[2]])
    for g, e in zip(got, Region()(*args), strict=True):
        torch.testing.assert_close(g, e)
    with pytest.raises(RuntimeError, match="takes 3 tensors"):
        module.forward([args[0]])
    with pytest.raises(RuntimeError, match="dtype"):
        module.forward([args[0].double(), args[1], args[2]])
    with pytest.raises(RuntimeError, match="status 3"):
        module.forward([args[0][:3], args[1], args[2]])
