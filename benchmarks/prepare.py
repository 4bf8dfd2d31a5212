"""``ytk embedded prepare`` against plain ``torch.onnx.export`` of the same model: ``python -m benchmarks.prepare [MODEL ...]``.

Whole processes, torch timing excluded. Two models need no carving (both sides then give the same thing): the example of the kind of
EfficientViT-B1, for which the target is set, and a plain convolutional net. Of the two examples that do, plain export is timed at
opset 18, where it succeeds but gives a model the target refuses.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks._report import paired, ratio, show

RUNS = 5
ROOT = Path(__file__).resolve().parents[1]
PLAIN_EXPORT = """
import runpy, sys, torch
scope = runpy.run_path(sys.argv[1])
model = scope["Model"]().eval()
args = scope["get_fwd_args"]()
torch.onnx.export(model, args, dynamo=True, opset_version=18, verbose=False).save(sys.argv[2])
"""
CONVNET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.expand = nn.Conv2d(channels, 4 * channels, 1)
        self.project = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.project(nn.functional.hardswish(self.expand(self.norm(self.depthwise(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(64) for _ in range(16)))
        self.head = nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def get_fwd_args() -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, 64, 64),)
"""


def main() -> None:
    """Time each model in turn, 5 pairs; arguments choose among the models by a part of their name."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "convnet.py").write_text(CONVNET)
        (work / "plain.py").write_text(PLAIN_EXPORT)
        models = {
            "examples/efficientvit_like": ROOT / "examples/efficientvit_like/model.py",
            "convnet (16 blocks)": work / "convnet.py",
            "examples/fold": ROOT / "examples/fold/model.py",
            "examples/volume_lifter": ROOT / "examples/volume_lifter/model.py",
        }
        chosen = [name for name in models if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
        ytk = str(Path(sys.executable).with_name("ytk"))
        for name in chosen:
            model = models[name]
            out = work / name.split()[0].replace("/", "_")
            out.mkdir()
            ours = [ytk, "embedded", "prepare", str(model), "--no-torch-timing"]
            ours += ["--onnx-out", str(out / "m.onnx"), "--npz-out", str(out / "m.npz")]
            ours += ["--reference-out", str(out / "m.reference.npz")]
            peer = [sys.executable, str(work / "plain.py"), str(model), str(out / "plain.onnx")]
            a, b = paired(ours, peer, runs=RUNS)
            rows.append(
                {
                    "model": name,
                    "prepare s": statistics.median(run.wall_s for run in a),
                    "export s": statistics.median(run.wall_s for run in b),
                    "ratio (pairs)": ratio([run.wall_s for run in a], [run.wall_s for run in b]),
                    "CPU ratio": ratio([run.cpu_s for run in a], [run.cpu_s for run in b]),
                    "memory ratio": ratio([run.peak_mib for run in a], [run.peak_mib for run in b]),
                    "peak MiB": f"{max(r.peak_mib for r in a):.0f} / {max(r.peak_mib for r in b):.0f}",
                }
            )
    show("prepare against torch.onnx.export (targets: time <= 1.2, memory <= 1.5)", rows)


if __name__ == "__main__":
    main()
