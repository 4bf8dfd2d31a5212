"""Calls and modules that torch's operator database has no samples of: high ranks, empty axes, module forms, attributes crossed.

Whatever is drawn may end native, carved, or refused with a reason; never wrong, never in an exception that is no error
of ours.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ytk_core.targets import load_profile

from conformance.examine import Call, examine
from conformance.outcome import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

Strategy = Callable[[st.DataObject], nn.Module]
STRATEGIES: dict[str, Strategy] = {}


def strategy(function: Strategy) -> Strategy:
    STRATEGIES[function.__name__] = function
    return function


class _Wrapped(nn.Module):
    """A module with its inputs."""

    def __init__(self, module: nn.Module, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.module = module
        self.tensors = tensors

    def forward(self, *tensors: torch.Tensor) -> object:
        return self.module(*tensors)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def shape(data: st.DataObject, low: int, high: int) -> list[int]:
    return data.draw(st.lists(st.integers(1, 3), min_size=low, max_size=high))


@strategy
def permutation_of_high_rank(data):
    x = some(*shape(data, 5, 9))
    return Call(lambda y, order: y.permute(order) * 2, [x, data.draw(st.permutations(range(x.dim())))], {})


@strategy
def patchify(data):
    """What vision models do: split axes, permute in rank 6 to 8, join again."""
    batch, channels, size = data.draw(st.sampled_from([(1, 2, 4), (2, 3, 2)]))
    three = data.draw(st.booleans())
    grid = [size, 2] * (3 if three else 2)
    order = [0, *range(2, 2 + len(grid), 2), *range(3, 3 + len(grid), 2), 1]

    def patches(x):
        return x.reshape(batch, channels, *grid).permute(order).reshape(batch, size ** (len(grid) // 2), -1)

    return Call(patches, [some(batch, channels, *[2 * size] * (len(grid) // 2))], {})


@strategy
def reduction_of_high_rank(data):
    x = some(*shape(data, 5, 9))
    axes = data.draw(st.lists(st.integers(0, x.dim() - 1), min_size=1, unique=True))
    name = data.draw(st.sampled_from(["sum", "mean", "amax", "std", "logsumexp"]))
    return Call(getattr(torch, name), [x], {"dim": axes, "keepdim": data.draw(st.booleans())})


@strategy
def broadcast_of_high_rank(data):
    full = shape(data, 5, 9)
    part = [data.draw(st.sampled_from([1, extent])) for extent in full]
    return Call(torch.add, [some(*full), some(*part)], {"alpha": data.draw(st.sampled_from([1, -0.5]))})


@strategy
def reduction_of_nothing(data):
    extents = shape(data, 1, 3)
    axis = data.draw(st.integers(0, len(extents) - 1))
    extents[axis] = 0
    name = data.draw(st.sampled_from(["sum", "mean", "prod", "var", "std", "all", "any", "norm"]))
    return Call(getattr(torch, name), [some(*extents)], {"dim": data.draw(st.integers(0, len(extents) - 1))})


@strategy
def joining_with_nothing(data):
    rows = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=3))
    return Call(lambda *parts: torch.cat(parts, 0), [some(each, 3) for each in rows], {})


@strategy
def product_with_nothing(data):
    n, k, m = (data.draw(st.integers(0, 2)) for _ in range(3))
    return Call(torch.matmul, [some(n, k), some(k, m)], {})


@strategy
def convolution(data):
    axes = data.draw(st.integers(1, 3))
    groups = data.draw(st.sampled_from([1, 2]))
    kind = [nn.Conv1d, nn.Conv2d, nn.Conv3d][axes - 1]
    return _Wrapped(
        kind(
            2 * groups,
            2 * groups,
            data.draw(st.integers(1, 3)),
            stride=data.draw(st.integers(1, 2)),
            padding=data.draw(st.integers(0, 2)),
            dilation=data.draw(st.integers(1, 2)),
            groups=groups,
            bias=data.draw(st.booleans()),
            padding_mode=data.draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
        ),
        some(1, 2 * groups, *[7] * axes),
    )


@strategy
def transposed_convolution(data):
    axes = data.draw(st.integers(1, 3))
    stride = data.draw(st.integers(1, 3))
    kind = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d][axes - 1]
    return _Wrapped(
        kind(
            2,
            2,
            3,
            stride=stride,
            padding=data.draw(st.integers(0, 1)),
            output_padding=data.draw(st.integers(0, stride - 1)),
            groups=data.draw(st.sampled_from([1, 2])),
        ),
        some(1, 2, *[4] * axes),
    )


@strategy
def pooling(data):
    x = some(1, 2, 7, 7)
    options = {"stride": data.draw(st.integers(1, 3)), "padding": 1, "ceil_mode": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        return Call(F.max_pool2d, [x, 3], {**options, "dilation": data.draw(st.integers(1, 2))})
    options["count_include_pad"] = data.draw(st.booleans())
    return Call(F.avg_pool2d, [x, 3], {**options, "divisor_override": data.draw(st.sampled_from([None, 4]))})


@strategy
def adaptive_pooling(data):
    axes = data.draw(st.integers(1, 3))
    name = data.draw(st.sampled_from(["avg", "max"]))
    size = data.draw(st.sampled_from([1, 2, 3]))
    return Call(getattr(F, f"adaptive_{name}_pool{axes}d"), [some(1, 2, *[5] * axes), [size] * axes], {})


@strategy
def interpolation(data):
    mode = data.draw(st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic", "area"]))
    smooth = mode in {"bilinear", "bicubic"}
    options = (
        {"size": (3, 8)} if data.draw(st.booleans()) else {"scale_factor": data.draw(st.sampled_from([2.0, 0.5, 1.7]))}
    )
    if smooth:
        options |= {"align_corners": data.draw(st.booleans()), "antialias": data.draw(st.booleans())}
    return Call(F.interpolate, [some(1, 2, 6, 5)], {"mode": mode, **options})


@strategy
def grid_sampling(data):
    axes = data.draw(st.integers(2, 3))
    modes = ["bilinear", "nearest", "bicubic"] if axes == 2 else ["bilinear", "nearest"]
    options = {
        "mode": data.draw(st.sampled_from(modes)),
        "padding_mode": data.draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": data.draw(st.booleans()),
    }
    grid = some(1, *[3] * axes, axes).tanh() * 1.2
    return Call(F.grid_sample, [some(1, 2, *[4] * axes), grid], options)


@strategy
def padding(data):
    mode = data.draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
    axes = data.draw(st.integers(1, 3))
    low = -1 if mode == "constant" else 0
    widths = [data.draw(st.integers(low, 2)) for _ in range(2 * axes)]
    return Call(F.pad, [some(1, 2, *[4] * axes), widths], {"mode": mode})


@strategy
def normalisation(data):
    axes = data.draw(st.integers(1, 3))
    kinds = {
        "batch": [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][axes - 1](4),
        "instance": [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][axes - 1](
            4, affine=data.draw(st.booleans())
        ),
        "group": nn.GroupNorm(2, 4, affine=data.draw(st.booleans())),
        "layer": nn.LayerNorm([3] * data.draw(st.integers(1, axes)), elementwise_affine=data.draw(st.booleans())),
        "rms": nn.RMSNorm([3]),
        "local": nn.LocalResponseNorm(2),
    }
    return _Wrapped(kinds[data.draw(st.sampled_from(sorted(kinds)))].eval(), some(2, 4, *[3] * axes))


@strategy
def recurrent(data):
    kind = data.draw(st.sampled_from([nn.RNN, nn.GRU, nn.LSTM]))
    batch_first = data.draw(st.booleans())
    layers, two = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    module = kind(3, 4, layers, batch_first=batch_first, bidirectional=two, bias=data.draw(st.booleans()))
    return _Wrapped(module.eval(), some(2, 3, 3))


@strategy
def attention_module(data):
    module = nn.MultiheadAttention(4, 2, batch_first=True, bias=data.draw(st.booleans())).eval()
    weights = data.draw(st.booleans())
    return Call(lambda x: module(x, x, x, need_weights=weights), [some(2, 3, 4)], {})


@strategy
def attention(data):
    lead = data.draw(st.sampled_from([(), (2,), (2, 2)]))
    q, k, v = (some(*lead, 3, 4) for _ in range(3))
    masked = data.draw(st.sampled_from(["", "causal", "bool", "float"]))
    options: dict[str, object] = {"is_causal": masked == "causal", "scale": data.draw(st.sampled_from([None, 0.3]))}
    if masked in {"bool", "float"}:
        mask = torch.tril(torch.ones(3, 3, dtype=torch.bool))
        options["attn_mask"] = mask if masked == "bool" else mask.float() - 1
    return Call(F.scaled_dot_product_attention, [q, k, v], options)


@strategy
def scatter(data):
    reduce = data.draw(st.sampled_from(["sum", "prod", "mean", "amax", "amin"]))
    index = torch.tensor([[0, 2, 2], [1, 1, 0]])
    options = {"include_self": data.draw(st.booleans())}
    return Call(torch.scatter_reduce, [some(3, 4), data.draw(st.integers(0, 1)), index, some(2, 3), reduce], options)


@strategy
def ordering(data):
    x = some(3, 4, 2)
    axis = data.draw(st.integers(-3, 2))
    name = data.draw(
        st.sampled_from(["sort", "topk", "cumsum", "cumprod", "cummax", "argsort", "flip", "logcumsumexp"])
    )
    if name == "topk":
        return Call(torch.topk, [x, 2, axis], {"largest": data.draw(st.booleans())})
    return Call(getattr(torch, name), [x, [axis] if name == "flip" else axis], {})


@strategy
def embedding(data):
    mode = data.draw(st.sampled_from([None, "sum", "mean", "max"]))
    index = torch.tensor([[1, 2, 4], [0, 3, 1]])
    if mode is None:
        return _Wrapped(nn.Embedding(5, 3, padding_idx=data.draw(st.sampled_from([None, 1]))), index)
    return _Wrapped(nn.EmbeddingBag(5, 3, mode=mode), index)


@strategy
def contraction(data):
    text, *shapes = data.draw(
        st.sampled_from(
            [
                ("ij,jk->ik", (2, 3), (3, 4)),
                ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
                ("ii->i", (3, 3)),
                ("abcde,dexy->abcxy", (1, 2, 1, 2, 3), (2, 3, 2, 1)),
                ("i,j,k->ijk", (2,), (3,), (2,)),
                ("...ij->...ji", (2, 1, 3, 2)),
            ]
        )
    )
    return Call(lambda *tensors: torch.einsum(text, *tensors), [some(*each) for each in shapes], {})


@strategy
def chain_of_types(data):
    steps = data.draw(
        st.lists(st.sampled_from([torch.int32, torch.float16, torch.float64, torch.int64, torch.uint8]), max_size=3)
    )

    def cast(x):
        for step in steps:
            x = x.abs().to(step)
        return x.float() * 2

    return Call(cast, [some(2, 3) * 10], {})


@pytest.mark.parametrize("profile", ["onnxruntime", "trt86"])
@pytest.mark.parametrize("name", sorted(STRATEGIES))
@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_nothing_is_wrong(name, profile, data):
    torch.manual_seed(0)
    module = STRATEGIES[name](data)
    found = examine(module, module.tensors, load_profile(profile))
    assert found.outcome not in {Outcome.WRONG, Outcome.CRASH, Outcome.HANG}, found
