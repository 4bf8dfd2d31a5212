"""Repros and what they are captured from: a region as prepare leaves it, a project with a model, kernels right and wrong."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_client.repro.format import Loaded
from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.region import EXTRA_FILE, RegionSpec, RegionTensor, encode_region_spec
from ytk_core.formats.weights_npz import write_weights

from fakes import client_files, kernel_bundles

REGION = """
import torch
def region(in0):
    return torch.ops.aten.col2im.default(in0, [8, 8], [3, 3], [1, 1], [1, 1], [1, 1])
"""


def fold(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """nn.Fold((8, 8), 3, padding=1), by its definition."""
    out = np.zeros((blocks.shape[0], 4, 10, 10), np.float32)
    parts = blocks.reshape(blocks.shape[0], 4, 3, 3, 8, 8)
    for i in range(3):
        for j in range(3):
            out[:, :, i : i + 8, j : j + 8] += parts[:, :, i, j]
    return out[:, :, 1:-1, 1:-1]


def candidates(folder: Path, *, source: str = REGION, sites: int = 2) -> Path:
    """A region as prepare leaves it; gives ``plugin_candidates/Fold``."""
    folder.mkdir(exist_ok=True)
    spec = RegionSpec(
        namespace="yasp",
        name="Fold",
        version="1",
        inputs=(RegionTensor(name="in0", dtype=DType.FLOAT32, shape=(1, 36, 64), dynamic_axes=(0,)),),
        outputs=(RegionTensor(name="out0", dtype=DType.FLOAT32, shape=(1, 4, 8, 8), dynamic_axes=(0,)),),
        aten_ops=("aten::col2im",),
        digest=digest_bytes(b"region"),
        torch_version="2.13.0",
        module_path="fold",
        sites=sites,
    )
    with zipfile.ZipFile(folder / "Fold.pt2", "w") as archive:
        archive.writestr(f"Fold/extra/{EXTRA_FILE}", encode_region_spec(spec))
    arrays = {}
    for site in range(sites):
        blocks = np.random.default_rng(site).standard_normal((1 + site, 36, 64)).astype(np.float32)
        arrays |= {f"site{site}/in0": blocks, f"site{site}/out0": fold(blocks)}
    write_weights(folder / "Fold.io.npz", arrays)
    (folder / "Fold.reference.py").write_text(source)
    return folder / "Fold"


def changed(loaded: Loaded, **changes: Any) -> Loaded:
    return msgspec.structs.replace(loaded, **changes)


def bundle(path: Path, old: str = "", new: str = "") -> Path:
    """The Fold kernel, with one place of its source changed."""
    kernel = client_files.kernel()
    assert old in kernel.source
    path.write_text(
        render_bundle(kernel_bundles.with_source(kernel, kernel.source.replace(old, new) if old else kernel.source))
    )
    return path


MODEL = """
import torch
from neighbour import SCALE

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 3
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, pair, *, scale, flags):
        self.count += 1
        left, right = pair["left"], pair["right"]
        if flags[0] == "fail":
            raise ValueError("no such flag: fail")
        left += 1  # the caller's tensor: a capture has to copy before the call
        return {"out": self.linear(left + right) * scale, "count": self.count.clone()}

class Broken(torch.nn.Module):
    def forward(self, x):
        return x @ x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()
        self.big = torch.nn.Linear(512, 512)
        self.unused = torch.nn.Identity()
        self.broken = Broken()

    def forward(self, x, bad=None):
        for _ in range(2):
            made = self.head({"left": x.clone(), "right": x.to(torch.float32)}, scale=SCALE, flags=("ok", None))
        if bad is not None:
            self.broken(bad)
        return made["out"], self.big(torch.zeros(512)).sum()

def get_fwd_args():
    return FWD_ARGS
"""


def project(folder: Path, args: str = "(torch.randn(3, 4),)") -> Path:
    """A model.py with a neighbour; ``args`` is what get_fwd_args gives."""
    folder.mkdir(exist_ok=True)
    (folder / "neighbour.py").write_text("SCALE = 1.5\n")
    (folder / "model.py").write_text(MODEL.replace("FWD_ARGS", args))
    # Python keeps the neighbour of an earlier project, which lies in another folder.
    sys.modules.pop("neighbour", None)
    return folder / "model.py"


def quiet(_text: str) -> None:
    """Take a child's output and say nothing."""
