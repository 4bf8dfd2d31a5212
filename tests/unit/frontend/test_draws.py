"""What is computed from noise has the distribution of torch's own operator. Seeds are fixed, so the verdicts are too."""

from __future__ import annotations

import math

import pytest
import torch

from ytk_client.frontend import draws
from ytk_client.frontend.draws import NoiseKind

pytestmark = pytest.mark.torch

aten = torch.ops.aten
N = 20_000
LIMIT = 1.95 * math.sqrt(2 / N)
"""Two samples of one distribution are further apart once in a thousand choices of the seeds."""


def source(generator: torch.Generator) -> draws.Source:
    def noise(kind, shape, dtype):
        draw = torch.rand if kind is NoiseKind.UNIFORM else torch.randn
        return draw(tuple(shape), generator=generator, dtype=dtype)

    return noise


def from_noise(target, args, out, rule=None):
    rule = rule or draws.rule_for(target)
    given = draws.bound_arguments(target, args, {})
    return rule(source(torch.Generator().manual_seed(1)), given, out)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Kolmogorov and Smirnov's: the largest gap between the two empirical distribution functions."""
    a, b = (x.flatten().to(torch.float64).sort().values for x in (a, b))
    points = torch.cat([a, b])
    shares = [torch.searchsorted(x, points, right=True) / len(x) for x in (a, b)]
    return float((shares[0] - shares[1]).abs().max())


WEIGHTS = torch.tensor([0.1, 0.0, 0.3, 0.6]).expand(N, 4)
CASES = {
    "rand": (aten.rand.default, ([N],)),
    "rand, half": (aten.rand_like.default, (torch.zeros(N, dtype=torch.float16),)),
    "uniform": (aten.uniform.default, (torch.zeros(N), -2.0, 3.0)),
    "uniform, double": (aten.uniform.default, (torch.zeros(N, dtype=torch.float64), -2.0, 3.0)),
    "randn": (aten.randn.default, ([N],)),
    "normal of numbers": (aten.normal.float_float, (1.0, 2.0, [N])),
    "normal of tensors": (aten.normal.Tensor_Tensor, (torch.full((N,), 1.0), torch.full((N,), 0.5))),
    "log_normal": (aten.log_normal.default, (torch.zeros(N), 0.5, 0.7)),
    "exponential": (aten.exponential.default, (torch.zeros(N), 2.0)),
    "cauchy": (aten.cauchy.default, (torch.zeros(N), 1.0, 0.5)),
    "geometric": (aten.geometric.default, (torch.zeros(N), 0.3)),
    "bernoulli": (aten.bernoulli.default, (torch.linspace(0, 1, N),)),
    "bernoulli, p": (aten.bernoulli.p, (torch.zeros(N), 0.3)),
    "randint": (aten.randint.low, (3, 11, [N])),
    "randint, far": (aten.randint.low, (-(2**40), 2**40, [N])),
    "randint_like": (aten.randint_like.default, (torch.zeros(N), 5)),
    "random": (getattr(aten.random, "from"), (torch.zeros(N, dtype=torch.int32), -5, 5)),
    "multinomial": (aten.multinomial.default, (WEIGHTS, 1)),
    "multinomial, again": (aten.multinomial.default, (WEIGHTS, 2, True)),
    "multinomial, two of them": (aten.multinomial.default, (WEIGHTS, 2, False)),
    "dropout": (aten.dropout.default, (torch.ones(N), 0.3, True)),
    "all dropped": (aten.dropout.default, (torch.ones(N), 1.0, True)),
    "feature_dropout": (aten.feature_dropout.default, (torch.ones(N // 4, 4, 1), 0.3, True)),
    "alpha_dropout": (aten.alpha_dropout.default, (torch.linspace(-2, 2, N), 0.3, True)),
    "feature_alpha_dropout": (aten.feature_alpha_dropout.default, (torch.linspace(-2, 2, N).view(-1, 4, 1), 0.3, True)),
    "rrelu": (aten.rrelu.default, (torch.linspace(-2, 1, N), 0.1, 0.4, True)),
    "attention": (
        aten.scaled_dot_product_attention.default,
        (torch.zeros(N, 1, 1, 4), torch.zeros(N, 1, 3, 4), torch.ones(N, 1, 3, 4), None, 0.4),
    ),
}


def code(result: torch.Tensor, name: str) -> torch.Tensor:
    """Give one number per draw: of two indices that belong together their combination."""
    result = result[..., :1] if name == "attention" else result
    return result[:, 0] * 4 + result[:, 1] if result.shape == (N, 2) else result


@pytest.mark.parametrize("name", CASES)
def test_a_draw_has_the_distribution_of_torchs_own(name):
    target, args = CASES[name]
    torch.manual_seed(0)
    want = target(*args)
    got = from_noise(target, args, want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert distance(code(got, name), code(want, name)) < LIMIT


def test_the_statistic_sees_a_draw_that_is_off():
    target, args = CASES["normal of numbers"]
    torch.manual_seed(0)
    want = target(*args)
    assert distance(from_noise(target, (1.0, 2.2, [N]), want), want) > LIMIT
    assert distance(from_noise(target, (1.1, 2.0, [N]), want), want) > LIMIT
    late = lambda noise, given, out: draws._geometric(noise, given, out) + 1  # noqa: E731
    target, args = CASES["geometric"]
    want = target(*args)
    assert distance(from_noise(target, args, want, late), want) > LIMIT


def test_permutations_are_all_as_probable():
    noise = source(torch.Generator().manual_seed(1))
    digits = torch.tensor([64, 16, 4, 1])
    rule = draws.rule_for(aten.randperm.default)
    torch.manual_seed(0)
    got = [int((rule(noise, {"n": 4}, torch.zeros(4, dtype=torch.int64)) * digits).sum()) for _ in range(3000)]
    want = [int((torch.randperm(4) * digits).sum()) for _ in range(3000)]
    assert len(set(got)) == math.factorial(4)
    assert distance(torch.tensor(got), torch.tensor(want)) < 1.95 * math.sqrt(2 / 3000)


def test_attention_with_nothing_dropped_is_torchs():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    target = aten.scaled_dot_product_attention.default
    mask = torch.randn(5, 6)
    for given in (
        {"attn_mask": mask, "is_causal": False},
        {"attn_mask": mask > 0, "is_causal": False},
        {"attn_mask": None, "is_causal": True},
    ):
        options = {"scale": 0.3, "enable_gqa": True, **given}
        want = target(query, key, value, **options)
        bound = draws.bound_arguments(target, (query, key, value), {**options, "dropout_p": 0.0})
        got = draws.rule_for(target)(source(torch.Generator().manual_seed(0)), bound, want)
        torch.testing.assert_close(got, want)


def test_noise_at_the_ends_of_its_range_gives_finite_numbers():
    def ends(kind, shape, dtype):
        assert kind is NoiseKind.UNIFORM
        top = 1 - 2.0 ** (-24 if dtype is torch.float32 else -53)
        return torch.tensor([0.0, top], dtype=dtype).expand(shape).clone()

    for name in ("exponential", "cauchy", "geometric", "randint", "randint, far", "random", "rand, half"):
        target, args = CASES[name]
        given = draws.bound_arguments(target, args, {})
        got = draws.rule_for(target)(ends, given, torch.zeros(2, dtype=target(*args).dtype))
        assert torch.isfinite(got).all(), name
        low, high = {
            "randint": (3, 10),
            "randint, far": (-(2**40), 2**40 - 1),
            "random": (-5, 4),
            "rand, half": (0, 0.9999),
        }.get(name, (-math.inf, math.inf))
        # float32's half pi is beyond the pole of the tangent.
        assert name == "cauchy" or low <= got[0] <= got[1] <= high, name
