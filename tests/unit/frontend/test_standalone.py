"""``ytk kernelgen export``: modules and functions as regions, and what the generator makes of them."""

from __future__ import annotations

import json

import pytest

from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Role
from ytk_core.formats.region import read_region_spec

pytestmark = pytest.mark.torch

SOURCE = """
import dataclasses

import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
    def forward(self, x, y):
        return self.norm(x) * y, (x > 0).sum(-1)

def get_fwd_args():
    return torch.randn(3, 8), torch.randn(3, 8)

def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

def rotate_args():
    return torch.randn(2, 5, 8), torch.randn(5, 4), torch.randn(5, 4)

ready = nn.Linear(8, 4)

def make():
    return nn.Linear(8, 4)

def one():
    return torch.randn(2, 8)

def picks(table, index, mask):
    return torch.where(mask, table[index], -1)

def picks_args():
    return torch.arange(12, dtype=torch.int64).reshape(4, 3), torch.tensor([0, 3]), torch.rand(2, 3) < 0.5

def grows(x):
    return x[x > 0]

def branches(x):
    return x if x.sum() > 0 else -x

def keeps(x):
    x += 1
    return x * 2

def half(x):
    return torch.softmax(x, -1)

def half_args():
    return torch.randn(4, 6, dtype=torch.bfloat16)

@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor

def tree(pair, more):
    best = pair.first.topk(2, dim=-1)
    return {"best": best, "rest": [pair.second * more["scale"], torch.return_types.max((pair.first, best.indices))]}

def tree_args():
    return Pair(torch.randn(3, 8), torch.randn(4)), {"scale": torch.randn(4)}
"""


@pytest.fixture
def blocks(tmp_path):
    path = tmp_path / "blocks.py"
    path.write_text(SOURCE)
    return path


def export(path, tmp_path, entry="Model", **options):
    from ytk_client.frontend.standalone import export_region, write_exported

    out = tmp_path / f"{entry}.pt2"
    write_exported(out, export_region(path, entry, **options))
    spec = read_region_spec(out)
    assert spec is not None
    return out, spec


def bound(path):
    """What the generator reads of it."""
    from ytk_gaia.generator.region_input import load_region

    return load_region(path)


def test_a_modules_inputs_are_its_arguments_and_weights(blocks, tmp_path):
    path, spec = export(blocks, tmp_path)
    assert (spec.namespace, spec.name) == ("yasp", "Model")
    assert {t.name: t.role for t in spec.inputs} == {
        "p_norm_weight": Role.PARAMETER, "p_norm_bias": Role.PARAMETER, "x": Role.ACTIVATION, "y": Role.ACTIVATION,
    }  # fmt: skip
    assert [(t.dtype, t.shape) for t in spec.outputs] == [(DType.FLOAT32, (3, 8)), (DType.INT64, (3,))]
    region = bound(path)
    assert region.spec == spec
    assert all(example is not None for example in region.examples)


def test_a_function_a_module_and_a_maker_are_entries(blocks, tmp_path):
    _, spec = export(blocks, tmp_path, "rotate", arguments="rotate_args", name="Rope", namespace="mine")
    assert (spec.namespace, spec.name, [t.name for t in spec.inputs]) == ("mine", "Rope", ["x", "cos", "sin"])
    for entry in ("ready", "make"):
        _, spec = export(blocks, tmp_path, entry, arguments="one")
        assert [t.shape for t in spec.outputs] == [(2, 4)]


@pytest.mark.parametrize(
    ("entry", "dtypes"),
    [("picks", [DType.INT64, DType.INT64, DType.BOOL, DType.INT64]), ("half", [DType.BFLOAT16, DType.BFLOAT16])],
)
def test_other_types_than_float32(blocks, tmp_path, entry, dtypes):
    path, spec = export(blocks, tmp_path, entry, arguments=f"{entry}_args")
    assert [t.dtype for t in (*spec.inputs, *spec.outputs)] == dtypes
    assert bound(path).spec == spec


def test_trees_and_torchs_own_tuples_are_flat_in_a_region(blocks, tmp_path):
    path, spec = export(blocks, tmp_path, "tree", arguments="tree_args")
    assert [t.shape for t in spec.inputs] == [(3, 8), (4,), (4,)]
    assert [t.shape for t in spec.outputs] == [(3, 2), (3, 2), (4,), (3, 8), (3, 2)]
    assert bound(path).spec == spec


def test_a_dynamic_axis_has_its_range(blocks, tmp_path):
    path, spec = export(
        blocks, tmp_path, "rotate", arguments="rotate_args", dynamic=["x:1=2,5,9", "cos:0=2,5,9", "sin:0=2,5,9"]
    )
    assert [t.dynamic_axes for t in spec.inputs] == [(1,), (0,), (0,)]
    assert {(e.input, e.axis, e.min, e.opt, e.max) for e in spec.extents} == {
        (0, 1, 2, 5, 9),
        (1, 0, 2, 5, 9),
        (2, 0, 2, 5, 9),
    }
    assert bound(path).border.ranges


def test_the_same_region_is_the_same_file(blocks, tmp_path):
    first, spec = export(blocks, tmp_path)
    content = first.read_bytes()
    second, again = export(blocks, tmp_path)
    assert again.digest == spec.digest
    assert second.read_bytes() == content


@pytest.mark.parametrize(
    ("entry", "options", "code", "words"),
    [
        ("Modle", {}, "model_incomplete", "defines no `Modle`"),
        ("Model", {"arguments": "fwd_args"}, "model_incomplete", "defines no `fwd_args`"),
        ("rotate", {}, "model_bad_args", "missing a required argument: 'sin'"),
        ("branches", {"arguments": "one"}, "capture_blocked", "branches"),
        ("grows", {"arguments": "one"}, "data_dependent_shape", "depends on tensor values"),
        ("keeps", {"arguments": "one"}, "region_mutates", "writes to"),
        ("rotate", {"arguments": "rotate_args", "dynamic": ["z:0=1,2,3"]}, "bad_dynamic", "there are x, cos, sin"),
        ("rotate", {"arguments": "rotate_args", "namespace": "a::b"}, "bad_option", "a::b"),
    ],
)
def test_what_cannot_be_a_region_is_named(blocks, tmp_path, entry, options, code, words):
    with pytest.raises(UserError) as caught:
        export(blocks, tmp_path, entry, **options)
    assert caught.value.code == code, caught.value
    assert words in caught.value.message


def test_the_command(blocks, tmp_path, capsys):
    from ytk_client.cli.main import run

    out = tmp_path / "deep" / "Rope.pt2"
    command = ["kernelgen", "export", f"{blocks}:rotate", "--args", "rotate_args", "-o", str(out)]
    assert run([*command, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["region"] == str(out)
    assert shown["spec"]["name"] == "rotate"
    assert run(command) == 0
    assert "ytk kernelgen compile -r" in capsys.readouterr().out
    assert run(["kernelgen", "export", f"{blocks}:rotat", "--args", "rotate_args", "-o", str(out)]) != 0
    assert "Did you mean `rotate`?" in capsys.readouterr().err
    assert run(["kernelgen", "export", str(tmp_path / "none.py"), "-o", str(out)]) != 0
    assert "none.py" in capsys.readouterr().err
