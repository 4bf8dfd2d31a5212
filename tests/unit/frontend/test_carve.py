"""FX surgery: convexity, order, names, what goes into a region with what."""

import operator

import pytest
import torch
from torch import nn

from ytk_client.frontend import carve, growth, recording, torch_adapter
from ytk_client.frontend.carve import Carver
from ytk_client.frontend.growth import Border
from ytk_client.frontend.refusals import Refusal
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.prepare_outputs import CandidateReason

pytestmark = pytest.mark.torch


def capture(function, *args: torch.Tensor) -> torch.export.ExportedProgram:
    class Module(nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    return torch_adapter.decompose(torch.export.export(Module(), args))


def refuse(program: torch.export.ExportedProgram, *targets: str) -> list[Refusal]:
    nodes = [
        node for node in program.graph.nodes if node.op == "call_function" and str(node.target).startswith(targets)
    ]
    return [Refusal(node.name, CandidateReason.TARGET_ILLEGAL, "no") for node in nodes]


def carver_of(program: torch.export.ExportedProgram, **options) -> Carver:
    return Carver(program, namespace="yasp", **{"is_builtin": lambda _name: False, **options})


def same_numbers(program: torch.export.ExportedProgram, function, *args: torch.Tensor) -> None:
    got = recording.record(program, args, []).outputs
    want = torch_adapter.flatten_output(function(*args))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_carved_program_computes_the_same_and_its_region_runs_alone():
    def function(x):
        return (x.sin() * 2).cos()

    x = torch.randn(4)
    program = capture(function, x)
    carver = carver_of(program)
    carver.carve(refuse(program, "aten.sin"))
    same_numbers(program, function, x)
    [region] = carver.regions
    assert (region.name, region.aten_op, region.placeholder) == ("Sin", "aten::sin", "yasp::Sin")
    torch.testing.assert_close(region.body(x), x.sin())
    assert carver.carved == {"sin": ("yasp::Sin", region.sites[0].node)}


def test_convex_closure_takes_in_what_lies_between():
    program = capture(lambda x: x.sin().cos().tan(), torch.randn(3))
    nodes = {node.name: node for node in program.graph.nodes}
    ends = {nodes["sin"], nodes["tan"]}
    assert not growth.is_convex(ends)
    assert growth.convex_closure(ends) == {nodes["sin"], nodes["cos"], nodes["tan"]}
    assert growth.is_convex({nodes["sin"], nodes["cos"]})


def test_two_refused_ends_of_a_complex_value_are_one_region():
    def function(x):
        spectrum = torch.fft.rfft(x)
        return torch.fft.irfft(spectrum * spectrum)

    x = torch.randn(2, 8)
    program = capture(function, x)
    carver = carver_of(program)
    carver.carve(refuse(program, "aten._fft_r2c", "aten._fft_c2r"))
    [region] = carver.regions
    assert set(region.aten_ops) >= {"aten::_fft_r2c", "aten::mul", "aten::_fft_c2r"}
    same_numbers(program, function, x)


def test_a_region_whose_early_output_is_used_before_its_last_input_is_made():
    """The region is convex, yet no place in the old order is after its inputs and before its users."""

    def function(x, y):
        spectrum = torch.fft.rfft(x)
        early = spectrum.real + 0
        used = early.relu()
        late = y.exp().sin()
        return used, (spectrum * late).imag

    x, y = torch.randn(8), torch.randn(5)
    program = capture(function, x, y)
    carver = carver_of(program)
    carver.carve(refuse(program, "aten._fft_r2c"))
    [region] = carver.regions
    assert len(region.sites[0].outputs) == 2
    order = {node: index for index, node in enumerate(program.graph.nodes)}
    assert all(order[arg] < order[node] for node in order for arg in node.all_input_nodes)
    same_numbers(program, function, x, y)


def test_several_rounds_share_names():
    def function(x):
        return x.sin() + (x * 2).sin(), x.clamp(0, 1) + x.clamp(0, 2)

    x = torch.randn(4)
    program = capture(function, x)
    carver = carver_of(program)
    first, second = refuse(program, "aten.sin")
    carver.carve([first])
    carver.carve([second, *refuse(program, "aten.clamp")])
    assert [(region.name, len(region.sites)) for region in carver.regions] == [("Sin", 2), ("Clamp", 1), ("Clamp_1", 1)]
    same_numbers(program, function, x)


def test_same_operator_on_another_dtype_or_rank_is_another_region():
    def function(x, y):
        return x.sin(), y.sin(), x[0].sin()

    program = capture(function, torch.randn(4, 4), torch.randn(4, 4).double())
    carver = carver_of(program)
    carver.carve(refuse(program, "aten.sin"))
    assert [region.name for region in carver.regions] == ["Sin", "Sin_1", "Sin_2"]


def test_shapes_that_one_program_does_not_serve_get_their_own_region():
    def function(x):
        return x.sin(), x[:2].sin()

    for can_vary, names in ((True, ["Sin"]), (False, ["Sin", "Sin_1"])):
        program = capture(function, torch.randn(4))
        carver = carver_of(program, can_vary=lambda *_args, answer=can_vary: answer)
        carver.carve(refuse(program, "aten.sin"))
        assert [region.name for region in carver.regions] == names


def test_names_avoid_the_targets_own_operators():
    program = capture(lambda x: x.sin().clamp(0, 1).clamp(0, 2), torch.randn(4))
    carver = carver_of(program, is_builtin=lambda name: name in {"Sin", "Clamp_1"})
    carver.carve(refuse(program, "aten.sin", "aten.clamp"))
    assert [region.name for region in carver.regions] == ["SinRegion", "Clamp", "Clamp_2"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::col2im", "Col2im"),
        ("aten::grid_sampler", "GridSampler"),
        ("aten::_fft_r2c", "FftR2c"),
        ("vision::3d_thing", "Op3dThing"),
    ],
)
def test_derived_names(monkeypatch, name, expected):
    monkeypatch.setattr(carve, "_op_name", lambda _node: name)
    assert carve.derived_name(None) == expected


def test_a_dtype_that_the_target_lacks_goes_inside():
    def function(x):
        return (x.bfloat16().sin() * 2).float()

    program = capture(function, torch.randn(4))
    border = Border(frozenset({DType.FLOAT32, DType.INT64}))
    carver = carver_of(program, border=border)
    carver.carve(refuse(program, "aten.sin"))
    [region] = carver.regions
    assert region.cannot_be_plugin is None
    assert [str(port.dtype) for port in (*region.sites[0].inputs, *region.sites[0].outputs)] == ["float32"] * 2
    same_numbers(program, function, torch.randn(4))


def test_a_lacking_dtype_at_the_models_border_is_marked_not_refused():
    program = capture(lambda x: x.bfloat16().sin(), torch.randn(4))
    carver = carver_of(program, border=Border(frozenset({DType.FLOAT32})))
    carver.carve(refuse(program, "aten.sin"))
    assert "bfloat16" in str(carver.regions[0].cannot_be_plugin)


def test_a_number_as_output_is_refused():
    program = capture(torch.fft.rfft, torch.randn(4))
    with pytest.raises(UserError, match="complex64") as caught:
        carver_of(program).carve(refuse(program, "aten._fft_r2c"))
    assert caught.value.code == "not_carvable"


def test_random_and_high_rank_regions_cannot_be_plugins():
    program = capture(torch.bernoulli, torch.rand(4))
    carver = carver_of(program)
    carver.carve(refuse(program, "aten.bernoulli"))
    assert "random" in str(carver.regions[0].cannot_be_plugin)
    program = capture(lambda x: x.sin(), torch.rand([1] * 9))
    carver = carver_of(program)
    carver.carve(refuse(program, "aten.sin"))
    assert "rank 9" in str(carver.regions[0].cannot_be_plugin)


def test_torch_cond_with_a_refused_operator_inside_is_carved_whole():
    def function(x):
        return torch.cond(x.sum() > 0, lambda y: y.cummax(0)[0], lambda y: y - 1, (x,)) * 3

    x = torch.randn(3, 2)
    program = capture(function, x)
    from ytk_client.frontend.prescan import exporter_refusals

    carver = carver_of(program)
    carver.carve(exporter_refusals(program))
    [region] = carver.regions
    assert "aten::cummax" in region.aten_ops
    assert exporter_refusals(program) == []
    got = recording.record(program, (x,), []).outputs[0]
    torch.testing.assert_close(got, (x.cummax(0)[0] if x.sum() > 0 else x - 1) * 3)


def test_getitems_of_a_region_keep_their_place_and_meta():
    program = capture(lambda x: x.cummax(0), torch.randn(3, 2))
    carver = carver_of(program)
    carver.carve(refuse(program, "aten.cummax"))
    items = [node for node in program.graph.nodes if node.target is operator.getitem]
    assert [node.args[1] for node in items] == [0, 1]
    assert [node.meta["val"].dtype for node in items] == [torch.float32, torch.int64]
    assert torch_adapter.user_output_names(program) == [node.name for node in items]
