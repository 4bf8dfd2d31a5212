"""The ``--config`` keys of kernel generation: one table for the client, which validates, and the generator, which obeys."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.region import RegionSpec

STRATEGIES = ("loops", "rewrites", "templates")


@dataclass(frozen=True)
class ConfigKey:
    """One key.

    Attributes:
        name: As written in ``--config name=value``.
        type: Word for people: ``word``, ``integer``, ``seconds``, ``number``, ``list``.
        default: The value where the key is not given; None: decided per region, see ``meaning``.
        meaning: One sentence.
        allowed: What is accepted, for people.
        parse: From text or a JSON value to the value; raises ValueError.
    """

    name: str
    type: str
    default: Any
    meaning: str
    allowed: str
    parse: Callable[[Any], Any]


def _word(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            raise ValueError(f"did you mean {close[0]!r}?" if close else "")
        return str(value)

    return parse


def _number(kind: type[int | float], low: float, high: float) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if isinstance(value, bool):
            raise TypeError
        number = kind(value)
        # Not a chained "outside" test: NaN fails every comparison.
        if not low <= number <= high or (kind is int and float(value) != number):
            raise ValueError
        return number

    return parse


def _strategies(value: Any) -> list[str]:
    words = [w.strip() for w in value.split(",")] if isinstance(value, str) else list(value)
    if not words or words == [""]:
        raise ValueError
    if words == ["all"]:
        return list(STRATEGIES)
    check = _word(*STRATEGIES)
    return list(dict.fromkeys(check(word) for word in words))


KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "deployment_target",
        "word",
        "torch",
        "What the kernel is for: a CPU engine's plugin, a TensorRT plugin, or a standalone torch extension.",
        "cpu, tensorrt, torch",
        _word("cpu", "tensorrt", "torch"),
    ),
    ConfigKey(
        "precision",
        "word",
        "captured",
        "Element type of the kernel's floating-point tensors; 'captured' keeps each tensor's own.",
        "captured, fp32, fp16, bf16",
        _word("captured", "fp32", "fp16", "bf16"),
    ),
    ConfigKey(
        "layout",
        "word",
        "auto",
        "Memory layout of the kernel's tensors: 'auto' is linear, and for TensorRT kHWC8 as well where the region allows it.",
        "auto, linear, khwc8",
        _word("auto", "linear", "khwc8"),
    ),
    ConfigKey(
        "strategies",
        "list",
        list(STRATEGIES),
        "Which generators may offer candidates, separated by commas.",
        f"all, or any of {', '.join(STRATEGIES)}",
        _strategies,
    ),
    ConfigKey(
        "budget",
        "seconds",
        120.0,
        "How long candidates may be built and measured, all of them together; what is not measured by then is reported as such.",
        "5 to 86400",
        _number(float, 5, 86400),
    ),
    ConfigKey(
        "candidates",
        "integer",
        32,
        "How many candidates may be measured at most.",
        "1 to 512",
        _number(int, 1, 512),
    ),
    ConfigKey(
        "threads",
        "integer",
        0,
        "CPU threads that a kernel is measured with; 0: as many as the eval worker has.",
        "0 to 1024",
        _number(int, 0, 1024),
    ),
    ConfigKey(
        "seed",
        "integer",
        0,
        "Seed of the sampled inputs.",
        "0 to 2147483647",
        _number(int, 0, 2**31 - 1),
    ),
    ConfigKey(
        "tolerance",
        "number",
        None,
        "Largest accepted error relative to the output's largest magnitude; not given: derived from the region's own rounding noise.",
        "above 0, up to 1",
        _number(float, 1e-12, 1.0),
    ),
    ConfigKey(
        "baseline_ms",
        "milliseconds",
        None,
        "A time to beat, from elsewhere: the report says how the winner compares. `--baseline` measures a kernel side by side instead.",
        "0.000001 to 1e9",
        _number(float, 1e-6, 1e9),
    ),
)
BY_NAME: dict[str, ConfigKey] = {key.name: key for key in KEYS}


def defaults() -> dict[str, Any]:
    """Give every key with its default."""
    return {key.name: list(key.default) if isinstance(key.default, list) else key.default for key in KEYS}


def validate(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Check keys and values and fill in the defaults.

    Args:
        mapping: Key to text (from a command line) or JSON value.

    Returns:
        Every key with its value.

    Raises:
        UserError: ``unknown_config_key`` or ``bad_config_value``; names the key, the value, and what is allowed.
    """
    result = defaults()
    for name, value in mapping.items():
        key = BY_NAME.get(name)
        if key is None:
            close = difflib.get_close_matches(name, BY_NAME, n=1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            raise UserError(
                f"unknown --config key {name!r}",
                code="unknown_config_key",
                hint=f"{guess}Keys: {', '.join(BY_NAME)}. `--config list` explains them.",
            )
        if value is None and key.default is None:
            continue
        try:
            result[name] = key.parse(value)
        except (ValueError, TypeError, OverflowError, AttributeError) as err:
            detail = f" ({err})" if isinstance(err, ValueError) and str(err).startswith("did you mean") else ""
            raise UserError(
                f"--config {name}={value}: not an accepted value{detail}",
                code="bad_config_value",
                hint=f"Accepted: {key.allowed}.",
            ) from err
    _check_together(result)
    return result


def _check_together(config: Mapping[str, Any]) -> None:
    """Refuse values that exclude each other."""
    target = config["deployment_target"]
    if config["layout"] == "khwc8" and target != "tensorrt":
        raise UserError(
            f"--config layout=khwc8 with deployment_target={target}: only TensorRT hands tensors over in that layout",
            code="bad_config_value",
            hint="Accepted with this target: auto, linear.",
        )


_PRECISION_OF: dict[DType, str] = {
    DType.FLOAT32: "fp32",
    DType.FLOAT16: "fp16",
    DType.BFLOAT16: "bf16",
    DType.FLOAT64: "fp64",
}


def check_region(config: Mapping[str, Any], spec: RegionSpec) -> None:
    """Refuse a configuration that this region cannot have, before a job is spent.

    A kernel for a CPU engine or for torch has the element types that the region was captured in; a TensorRT plugin also has those
    that the engine may choose.

    Args:
        config: Validated.
        spec: The region's.

    Raises:
        UserError: ``precision_not_available``.
    """
    wanted = config["precision"]
    if wanted == "captured" or config["deployment_target"] == "tensorrt":
        return
    found = {_PRECISION_OF[t.dtype] for t in (*spec.inputs, *spec.outputs) if t.dtype in _PRECISION_OF}
    if found - {wanted}:
        raise UserError(
            f"--config precision={wanted}: the region was captured in {', '.join(sorted(found))}",
            code="precision_not_available",
            hint="Leave precision out, or capture the model in the precision that you want (model.half(), .bfloat16()).",
        )


def parse_budget(text: str) -> dict[str, str]:
    """Read ``--budget``: seconds, a number of candidates, or both, separated by a comma.

    ``90`` and ``90s`` are seconds, ``2m`` minutes, ``16c`` candidates.

    Returns:
        ``budget`` and ``candidates`` as the configuration takes them; what was not said is not in it.

    Raises:
        UserError: ``bad_config_value``.
    """
    found: dict[str, str] = {}
    for word in (part.strip().lower() for part in text.split(",")):
        number, unit = (word[:-1], word[-1]) if word[-1:] in {"s", "m", "c"} else (word, "s")
        key = "candidates" if unit == "c" else "budget"
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if value != value or key in found:  # noqa: PLR0124 -- NaN is the number that is not itself
            raise UserError(
                f"--budget {text}: not an accepted value",
                code="bad_config_value",
                hint="Seconds (90 or 90s), minutes (2m), candidates (16c), or both: 90s,16c.",
            )
        found[key] = number if unit != "m" else str(value * 60)
    return found


def parse_assignments(assignments: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Read ``key=value`` words of a command line and :func:`validate` them; a later one wins.

    Raises:
        UserError: A word has no ``=``, or see :func:`validate`.
    """
    mapping: dict[str, str] = {}
    for word in assignments:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(
                f"--config {word!r} is not key=value",
                code="bad_config_value",
                hint="For example --config deployment_target=cpu.",
            )
        mapping[name.strip()] = value.strip()
    return validate(mapping)
