"""Further reference inputs that a model file gives."""

import numpy as np
import pytest

from ytk_core.errors import UserError
from ytk_core.formats.reference import read_reference

pytestmark = pytest.mark.torch
MODEL = """
class Model(nn.Module):
    def forward(self, x, extra):
        return x * extra["scale"]

def get_fwd_args():
    return (torch.ones(2, 3), {{"scale": torch.full((3,), 2.0)}})

def get_reference_args():
    return {entries}
"""
SCALE = '{"scale": torch.zeros(3)}'


def test_they_are_compared_and_written_after_the_variations(run_prepare):
    entries = f"[(torch.full((2, 3), float(n)), {SCALE}) for n in (7, 8)]"
    report, out = run_prepare(MODEL.format(entries=entries), samples=2)
    samples = read_reference(out / "model.reference.npz").samples
    assert [float(sample.inputs["x"].flat[0]) for sample in samples[2:]] == [7.0, 8.0]
    assert [float(np.abs(sample.outputs["output"]).max()) for sample in samples[2:]] == [0.0, 0.0]
    assert len(report.accuracy) == 4


def test_a_loss_that_only_they_show_is_found(run_prepare):
    source = MODEL.replace('return x * extra["scale"]', 'return (x * extra["scale"]).to(torch.int64)')
    run_prepare(source.format(entries="[]"))
    with pytest.raises(UserError, match="'output' holds 5000000000"):
        run_prepare(source.format(entries='[(torch.full((2, 3), 5e9), {"scale": torch.ones(3)})]'))


def test_with_dynamic_axes_their_extents_may_differ_within_the_range(run_prepare):
    entries = f"[(torch.ones(5, 3), {SCALE})]"
    _, out = run_prepare(MODEL.format(entries=entries), samples=1, dynamic=("x:0=1,2,6",))
    assert [sample.inputs["x"].shape[0] for sample in read_reference(out / "model.reference.npz").samples] == [2, 5]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (f"[(torch.ones(5, 3), {SCALE})]", "entry 0, x has extent 5 on axis 0, and 2 is allowed"),
        (f"[(torch.ones(2, 3, 1), {SCALE})]", "entry 0, tensor 0 is torch.float32 of rank 3"),
        (f"[(torch.ones(2, 3).long(), {SCALE})]", "torch.int64 of rank 2"),
        ("[(torch.ones(2, 3),)]", "entry 0 has not the structure"),
        ("[3]", r"get_reference_args\(\) in .* returned int"),
        ("1 / 0", r"get_reference_args\(\) raised"),
    ],
)
def test_what_does_not_fit_is_named(run_prepare, entries, words):
    with pytest.raises(UserError, match=words):
        run_prepare(MODEL.format(entries=entries))
