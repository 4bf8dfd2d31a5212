"""Selectors on captured programs: which nodes, what is folded, which sites share a plugin, what is refused."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ytk_client.frontend import recording, regions, torch_adapter
from ytk_client.frontend.carve import Carver
from ytk_client.frontend.growth import ANY_BORDER
from ytk_client.frontend.load_model import load_model
from ytk_client.frontend.selectors import parse_selectors
from ytk_client.frontend.selectors_call import intercepted, python_paths, take_marks
from ytk_client.frontend.selectors_carve import carve_selected, find_and_lift
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import Role

pytestmark = pytest.mark.torch
EXAMPLE = Path(__file__).parents[3] / "examples" / "selectors" / "model.py"


_programs: dict[tuple, torch.export.ExportedProgram] = {}


def _captured(module: nn.Module, args: tuple, paths: tuple[str, ...]) -> torch.export.ExportedProgram:
    """Capture a module once: a carver changes its program, so each gets a copy."""
    key = (id(module), paths)
    if key not in _programs:
        with intercepted(paths):
            _programs[key] = torch_adapter.decompose(torch.export.export(module, args, strict=False))
    program = _programs[key]
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=copy.deepcopy(program.graph),
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=program.constants,
    )


class Carved:
    """A module with what selectors carved of it."""

    def __init__(self, module: nn.Module, args: tuple, *texts: str, can_vary: Callable[..., bool] | None = None):
        self.module, self.args = module.eval(), args
        selectors = parse_selectors(texts)
        paths = python_paths(selectors)
        self.program = _captured(self.module, args, tuple(paths))
        calls = {path: [] for path in paths} | take_marks(self.program)
        selection = find_and_lift(
            self.program, selectors, ANY_BORDER, calls, is_builtin=lambda name: name in {"Conv", "Softmax"}
        )
        self.carver = Carver(self.program, namespace="yasp", is_builtin=lambda _name: False)
        self.notes = carve_selected(self.program, self.carver, selection, ANY_BORDER, can_vary or (lambda *_args: True))
        self.regions = {region.name: region for region in self.carver.regions}

    def check(self) -> "Carved":
        """Every region and the whole carved program compute what the module computes."""
        with torch.no_grad():
            want = torch_adapter.flatten_output(self.module(*self.args))
        got = recording.record(self.program, self.args, []).outputs
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        return self

    def ops(self, name: str) -> list[str]:
        return [op.split("::")[-1] for op in self.regions[name].aten_ops]

    def places(self, name: str) -> list[str]:
        return [site.module_path for site in self.regions[name].sites]


@pytest.fixture(scope="module")
def backbone():
    model = load_model(EXAMPLE)
    return model.module, model.args


def test_a_class_is_swapped_whole_with_its_batch_norm_folded(backbone):
    carved = Carved(*backbone, "yasp::Dw=ConvNormAct@where=*.local.depth").check()
    [region] = carved.carver.regions
    assert carved.ops("Dw") == ["conv2d", "hardswish"]
    assert carved.places("Dw") == ["stages.0.0.local.depth", "stages.0.1.local.depth", "stages.1.1.local.depth"]
    inputs = region.sites[0].inputs
    assert [port.role for port in inputs] == [Role.ACTIVATION, Role.PARAMETER, Role.PARAMETER]
    assert inputs[1].qualified_name == "stages.0.0.local.depth.conv.folded_weight"
    # The channels differ between sites, and with them the groups of the convolution.
    assert [site.inputs[1].shape[0] for site in region.sites] == [16, 16, 32]
    assert region.selector == "yasp::Dw=ConvNormAct@where=*.local.depth"
    spec = regions.region_spec(region)
    assert spec.inputs[0].dynamic_axes == (1, 2, 3)
    assert spec.inputs[1].dynamic_axes == (0,)


def test_one_program_really_serves_the_whole_family(backbone):
    carved = Carved(*backbone, "yasp::Dw=ConvNormAct@where=*.local.depth", can_vary=regions.can_vary)
    [region] = carved.carver.regions
    for channels in (16, 32, 64):
        x, w, b = torch.randn(1, channels, 6, 5), torch.randn(channels, 1, 3, 3), torch.randn(channels)
        torch.testing.assert_close(region.body(x, w, b), F.hardswish(F.conv2d(x, w, b, padding=1, groups=channels)))


def test_around_takes_the_attention_and_its_plumbing(backbone):
    carved = Carved(*backbone, "yasp::Mla=LiteMLA:around", can_vary=regions.can_vary).check()
    ops = carved.ops("Mla")
    assert ops.count("matmul") == 2
    assert ops[0] == "cat"
    assert {"pad", "transpose", "relu", "div"} <= set(ops)
    assert "conv2d" not in ops
    assert len(carved.regions) == 1
    assert len(carved.places("Mla")) == 3


def test_nojoin_leaves_the_concatenation_outside(backbone):
    carved = Carved(*backbone, "yasp::Mla=LiteMLA:around@nojoin@where=stages.0.0.*").check()
    assert "cat" not in carved.ops("Mla")
    assert len(carved.regions["Mla"].sites[0].inputs) == 1


def test_other_attributes_get_a_name_of_their_own(backbone):
    carved = Carved(*backbone, "yasp::Dw=ConvNormAct@where=*.depth").check()
    assert carved.places("Dw_1") == ["stages.1.0.depth"]
    assert len(carved.places("Dw")) == 3
    [note] = carved.notes
    assert "stride of aten.conv2d.default is [1, 1] and [2, 2]" in note


def test_exclusion_and_several_selectors_side_by_side(backbone):
    carved = Carved(
        *backbone,
        "yasp::Dw=ConvNormAct@where=*.depth,*.deep,!stages.1.*",
        "abc::Mla=LiteMLA:around@where=stages.1.*",
        "::Head=mod:head",
    ).check()
    assert carved.places("Dw") == ["stages.0.0.local.depth", "stages.0.1.local.depth"]
    assert [region.placeholder for region in carved.carver.regions] == ["yasp::Dw", "abc::Mla", "::Head"]
    assert carved.notes == ["yasp::Dw: nothing is in the scope of @where=*.deep"]


def test_fold_refuses_two_convolutions_and_seq_takes_them(backbone):
    for lift in ("", "@lift=fold_conv_bn"):
        with pytest.raises(UserError, match="3 convolutions, and one folded") as caught:
            Carved(*backbone, f"yasp::A=MBConv@where=*.local{lift}")
        assert caught.value.code == "lift_refused"
        assert "fold_conv_bn_seq" in caught.value.hint
    carved = Carved(*backbone, "yasp::A=MBConv@where=*.local@lift=fold_conv_bn_seq").check()
    names = [port.qualified_name.rpartition(".")[2] for port in carved.regions["A"].sites[0].inputs]
    assert names == ["", *(["folded_weight", "folded_bias"] * 3)]
    assert not any("norm" in op for op in carved.ops("A"))


def test_lift_none_keeps_weights_as_constants_so_each_site_is_its_own(backbone):
    carved = Carved(*backbone, "yasp::A=ConvNormAct@where=stages.0.*.depth@lift=none").check()
    assert sorted(carved.regions) == ["A", "A_1"]
    [site] = carved.regions["A"].sites
    assert len(site.inputs) == 1
    assert "_native_batch_norm_legit_no_training" in carved.ops("A")


def test_call_span_list_and_suffix(backbone):
    carved = Carved(*backbone, "yasp::Pad=call:torch.nn.functional.pad@where=stages.0.0.*").check()
    assert carved.ops("Pad") == ["pad"]
    carved = Carved(*backbone, "yasp::M=call:aten.matmul").check()
    assert sum(len(region.sites) for region in carved.carver.regions) == 6
    carved = Carved(*backbone, "yasp::S=relu...div").check()
    assert carved.ops("S")[0] == "relu"
    assert carved.ops("S")[-1] == "div"
    carved = Carved(*backbone, "yasp::L=matmul,matmul_1,relu_1").check()
    assert sorted(carved.ops("L")) == ["matmul", "matmul", "relu"]
    carved = Carved(*backbone, "yasp::P=mod:local.project,".rstrip(",")).check()
    assert len(carved.places("P")) == 3


@pytest.mark.parametrize(
    ("texts", "code", "says"),
    [
        (["n::A=LiteMLB"], "selector_no_match", "Nearest: LiteMLA"),
        (["n::A=LiteMLA@where=stage.0.*"], "selector_no_match", "stages.0.0.context"),
        (["n::A=mod:contxt"], "selector_no_match", "context"),
        (["n::A=call:torch.nn.functional.padd"], "selector_no_match", "there is no function"),
        (["n::A=call:aten.sofmax"], "selector_no_match", "nothing in the model calls"),
        (["n::A=relu...matmul_99"], "selector_no_match", "Nearest: matmul"),
        (["n::A=div...relu"], "selector_no_match", "write relu...div"),
        (["n::A=MBConv@lift=none", "n::B=ConvNormAct"], "selector_overlap", "overlap"),
        (["n::A=relu,div"], "selector_not_convex", "comes back through"),
        (["n::Conv=ConvNormAct@where=stem"], "builtin_name", "ConvPlugin"),
        (["n::A=Linear@lift=fold_conv_bn"], "lift_refused", "no convolution"),
        (["n::A=Hardswish:around"], "selector_no_match", "no heavy operator"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_nearest_match(backbone, texts, code, says):
    with pytest.raises(UserError) as caught:
        Carved(*backbone, *texts)
    assert caught.value.code == code
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_shapes_that_no_single_program_takes(backbone):
    with pytest.raises(UserError, match=r"1x48x16x24 at stages.0.0.context and 1x96x8x12 at stages.1.1") as caught:
        Carved(*backbone, "n::A=LiteMLA:around@nojoin", can_vary=lambda *_args: False)
    assert caught.value.code == "selector_mixed_shapes"
    assert "@where=stages.0.0.context" in caught.value.hint


class Twice(nn.Module):
    """A module called twice, weights tied to another's, an integer input, several outputs, a region as graph output."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.norm(self.conv(x))
            return y.relu(), y.sigmoid()

    class Pick(nn.Module):
        def forward(self, x, index):
            return x[:, index].sin()

    def __init__(self):
        super().__init__()
        self.part, self.twin, self.pick = self.Part(), self.Part(), self.Pick()
        self.twin.conv.weight = self.part.conv.weight
        self.twin.conv.bias = self.part.conv.bias

    def forward(self, x, index):
        a, b = self.part(x)
        c, d = self.part(a + b)
        e, f = self.twin(c)
        return self.pick(d, index), e, f


def test_called_twice_tied_weights_several_outputs_integer_inputs_graph_outputs():
    args = (torch.randn(2, 4, 3, 3), torch.tensor([2, 0]))
    carved = Carved(Twice(), args, "yasp::Part=Part", "yasp::Pick=Pick").check()
    region = carved.regions["Part"]
    assert carved.places("Part") == ["part", "part", "twin"]
    assert len(region.sites[0].outputs) == 2
    weights = [site.inputs[1].value for site in region.sites]
    assert weights[0] == weights[1] != weights[2]  # one pair for both calls; the twin has another norm
    assert [str(port.dtype) for port in carved.regions["Pick"].sites[0].inputs] == ["float32", "int64"]


def test_folding_every_kind_of_convolution():
    class Convs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6, affine=False))
            self.b = nn.Sequential(nn.Conv2d(6, 3, 1), nn.BatchNorm2d(3))
            self.c = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False))
            for norm in (self.a[1], self.b[1]):
                nn.init.uniform_(norm.running_mean)
                nn.init.uniform_(norm.running_var, 0.5, 2)

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    carved = Carved(Convs(), (torch.randn(1, 4, 5, 5),), "n::A=Convs@lift=fold_conv_bn_seq").check()
    assert carved.ops("A") == ["convolution", "conv2d", "conv2d"]
    assert len(carved.regions["A"].sites[0].inputs) == 7


def test_sites_of_several_families_that_follow_each_other():
    class Block(nn.Module):
        def __init__(self, groups: int):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups)

        def forward(self, x):
            return self.conv(x).relu()

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            # Each family's sites come between those of the other.
            self.blocks = nn.Sequential(*(Block(groups) for groups in (1, 4, 1, 4, 2)))

        def forward(self, x):
            return self.blocks(x) + 1

    args = (torch.randn(1, 4, 5, 5),)
    module = Chain().eval()
    carved = Carved(module, args, "yasp::B=Block").check()
    assert {name: len(region.sites) for name, region in carved.regions.items()} == {"B": 2, "B_1": 2, "B_2": 1}
    # Constants of the region instead of inputs: then each site is a family of its own.
    baked = Carved(module, args, "yasp::B=Block@lift=none").check()
    assert len(baked.regions) == 5
    assert all(len(region.sites[0].inputs) == 1 for region in baked.regions.values())
