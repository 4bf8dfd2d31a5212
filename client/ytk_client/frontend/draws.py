"""What torch's random operators compute from noise: each as an ordinary function of standard uniform or normal numbers.

``--random-inputs`` puts these in the place of the operators, so that the noise is an input of the graph. The
distributions are those that torch documents; the numbers that torch itself would draw are not reproduced, for its
generators differ by device and version.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class NoiseKind(enum.StrEnum):
    """Which numbers a noise input takes, independent of each other; the value is the text of the tables."""

    UNIFORM = "uniform [0, 1)"
    """Equally probable; 1 itself never occurs (1 is where the logarithms below would be infinite)."""
    NORMAL = "normal (0, 1)"
    """Mean 0, standard deviation 1."""


class Source(Protocol):
    """Gives noise of a kind, shape and dtype (float32 or float64)."""

    def __call__(self, kind: NoiseKind, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Give a tensor."""
        ...


class NoRuleError(Exception):
    """This form of a random operator is not written as a function of noise."""


Arguments = dict[str, Any]
Rule = Callable[[Source, Arguments, torch.Tensor], Any]
"""Of the noise source, the operator's arguments by name (defaults filled in) and its (first) output, of which only shape
and dtype count; gives what the operator gives."""

_LARGE_RANGE = 2**16
"""float32 noise has 2^24 values: over a longer range of integers some would be noticeably more probable than others."""
_LARGE_PERMUTATION = 64
"""Above it, equal float32 numbers, whose order no engine promises, are too probable."""


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype to compute in: half precision has too few numbers between 0 and 1."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _uniform_of(noise: Source, like: torch.Tensor) -> torch.Tensor:
    return noise(NoiseKind.UNIFORM, like.shape, _wide(like.dtype))


def _normal_of(noise: Source, like: torch.Tensor) -> torch.Tensor:
    return noise(NoiseKind.NORMAL, like.shape, _wide(like.dtype))


def _exponential_of(uniform: torch.Tensor) -> torch.Tensor:
    # 1 - u is exact, and log of it never infinite, since u is a multiple of 2^-24 (2^-53) below 1.
    return -torch.log(1 - uniform)


def _grid(uniform: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round noise down to what a half can hold: rounded to the nearest, the largest would become 1."""
    digits = {torch.float16: 2**11, torch.bfloat16: 2**8}.get(dtype)
    return uniform if digits is None else torch.floor(uniform * digits) / digits


def _rand(noise: Source, _given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return _grid(_uniform_of(noise, out), out.dtype).to(out.dtype)


def _uniform(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    low, high = given["from"], given["to"]
    # Rounded once, at the end: what cancels to nearly 0 would keep the rounding of the product.
    return (low + (high - low) * _grid(_uniform_of(noise, out), out.dtype)).to(out.dtype)


def _randn(noise: Source, _given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return _normal_of(noise, out).to(out.dtype)


def _normal(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return (given["mean"] + given["std"] * _normal_of(noise, out)).to(out.dtype)


def _log_normal(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return torch.exp(given["mean"] + given["std"] * _normal_of(noise, out)).to(out.dtype)


def _exponential(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return (_exponential_of(_uniform_of(noise, out)) / given["lambd"]).to(out.dtype)


def _cauchy(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    angle = math.pi * (_uniform_of(noise, out) - 0.5)
    return (given["median"] + given["sigma"] * torch.tan(angle)).to(out.dtype)


def _geometric(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    trials = torch.ceil(_exponential_of(_uniform_of(noise, out)) / -math.log1p(-given["p"]))
    return torch.clamp(trials, min=1).to(out.dtype)


def _bernoulli(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    # The probabilities are the input itself, or an argument: a number or a tensor.
    return (_uniform_of(noise, out) < given.get("p", given["self"])).to(out.dtype)


def _integers(noise: Source, low: int, high: int, out: torch.Tensor) -> torch.Tensor:
    """Integers in [low, high)."""
    wide = torch.float64 if high - low > _LARGE_RANGE else torch.float32
    steps = torch.floor(noise(NoiseKind.UNIFORM, out.shape, wide) * (high - low))
    # The product can be rounded up to the range itself.
    return (torch.clamp(steps, max=high - low - 1) + low).to(out.dtype)


def _randint(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    if isinstance(given["high"], torch.Tensor):
        msg = "a bound that is a tensor"
        raise NoRuleError(msg)
    return _integers(noise, given.get("low", 0), given["high"], out)


def _random(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    if given.get("to") is None:
        msg = "the whole range of its type"
        raise NoRuleError(msg)
    return _integers(noise, given.get("from", 0), given["to"], out)


def _randperm(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    wide = torch.float64 if given["n"] > _LARGE_PERMUTATION else torch.float32
    return torch.argsort(noise(NoiseKind.UNIFORM, out.shape, wide)).to(out.dtype)


def _multinomial(noise: Source, given: Arguments, _out: torch.Tensor) -> torch.Tensor:
    """Draw indices with the given weights.

    Without replacement by an exponential race, as torch does: the indices of the largest weight / exponential are a sample.
    With replacement by the inverse of the cumulative weights, one uniform number for each draw.
    """
    weights, count = given["self"], given["num_samples"]
    if given["replacement"] and count > 1:
        total = torch.cumsum(weights, -1)
        uniform = noise(NoiseKind.UNIFORM, (*weights.shape[:-1], count), _wide(weights.dtype))
        reached = (uniform * total[..., -1:]).unsqueeze(-1) >= total.unsqueeze(-2)
        return torch.clamp(reached.sum(-1), max=weights.shape[-1] - 1)
    race = torch.clamp(_exponential_of(_uniform_of(noise, weights)), min=torch.finfo(torch.float32).tiny)
    return torch.topk(weights / race, count, dim=-1).indices


def _kept(noise: Source, p: float, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Give True with probability 1 - p."""
    return noise(NoiseKind.UNIFORM, shape, _wide(dtype)) >= p


def _scaled(x: torch.Tensor, kept: torch.Tensor, p: float) -> torch.Tensor:
    # With p = 1 nothing is kept, and there is nothing to scale up.
    return x * kept.to(x.dtype) * (1.0 / (1.0 - p) if p < 1 else 0.0)


def _channel_shape(x: torch.Tensor) -> tuple[int, ...]:
    return (*x.shape[:2], *(1 for _ in x.shape[2:]))


def _dropout(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return _scaled(given["input"], _kept(noise, given["p"], out.shape, out.dtype), given["p"])


def _native_dropout(noise: Source, given: Arguments, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = _kept(noise, given["p"], out.shape, out.dtype)
    return _scaled(given["input"], kept, given["p"]), kept


def _feature_dropout(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return _scaled(given["input"], _kept(noise, given["p"], _channel_shape(out), out.dtype), given["p"])


_ALPHA = 1.7580993408473766
"""SELU's scale * alpha: a dropped value becomes -alpha, and the line a * x + b brings mean and variance back."""


def _alpha(x: torch.Tensor, kept: torch.Tensor, p: float) -> torch.Tensor:
    if p == 1:
        return x * 0.0
    a = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1.0) * (1.0 - p))
    keep = kept.to(x.dtype)
    return x * (keep * a) + ((keep - 1.0) * (_ALPHA * a) + _ALPHA * a * p)


def _alpha_dropout(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return _alpha(given["input"], _kept(noise, given["p"], out.shape, out.dtype), given["p"])


def _feature_alpha_dropout(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    return _alpha(given["input"], _kept(noise, given["p"], _channel_shape(out), out.dtype), given["p"])


def _rrelu(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    x, low, high = given["self"], given["lower"], given["upper"]
    slope = (low + (high - low) * _uniform_of(noise, out)).to(x.dtype)
    return torch.where(x <= 0, x * slope, x)


def _attention(noise: Source, given: Arguments, out: torch.Tensor) -> torch.Tensor:
    """Scaled dot product attention with dropout of the weights, in its plain form."""
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    if given["enable_gqa"]:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scale = given["scale"] if given["scale"] is not None else 1.0 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-2, -1) * scale
    if given["is_causal"]:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    kept = _kept(noise, given["dropout_p"], weights.shape, out.dtype)
    return _scaled(weights, kept, given["dropout_p"]) @ value


RULES: dict[str, Rule] = {
    "rand": _rand,
    "rand_like": _rand,
    "uniform": _uniform,
    "randn": _randn,
    "randn_like": _randn,
    "normal": _normal,
    "normal_functional": _normal,
    "log_normal": _log_normal,
    "exponential": _exponential,
    "cauchy": _cauchy,
    "geometric": _geometric,
    "bernoulli": _bernoulli,
    "randint": _randint,
    "randint_like": _randint,
    "random": _random,
    "randperm": _randperm,
    "multinomial": _multinomial,
    "dropout": _dropout,
    "native_dropout": _native_dropout,
    "feature_dropout": _feature_dropout,
    "alpha_dropout": _alpha_dropout,
    "feature_alpha_dropout": _feature_alpha_dropout,
    "rrelu": _rrelu,
    "scaled_dot_product_attention": _attention,
}
"""By the operator's name in ``aten``, without the ``_`` of the form that works in place."""


def rule_for(target: Any) -> Rule | None:
    """Give the rule for an operator overload, None if there is none."""
    packet = str(target).split(".")[1] if str(target).startswith("aten.") else ""
    return RULES.get(packet.removesuffix("_"))


def works_in_place(target: Any) -> bool:
    """Tell whether an operator writes its result into its first argument."""
    return bool(target._schema.is_mutable)  # noqa: SLF001 - the only way to an operator's schema


def bound_arguments(target: Any, args: Sequence[Any], kwargs: Arguments) -> Arguments:
    """Give the arguments of a call by the names of the operator's schema, with its defaults."""
    declared = target._schema.arguments  # noqa: SLF001 - as above
    defaults = {each.name: each.default_value for each in declared if each.has_default_value()}
    return {**defaults, **dict(zip((each.name for each in declared), args, strict=False)), **kwargs}
