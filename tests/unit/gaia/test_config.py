"""The ``--config`` keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from ytk_core import kernelgen_config as config
from ytk_core.dtypes import DType
from ytk_core.errors import UserError
from ytk_core.formats.region import RegionSpec, RegionTensor


def test_defaults_are_valid_and_complete():
    found = config.validate({})
    assert list(found) == [key.name for key in config.KEYS]
    assert found["deployment_target"] == "torch"
    assert config.validate(found) == found
    assert all(key.meaning and key.allowed for key in config.KEYS)


def test_defaults_are_not_shared():
    config.validate({})["strategies"].append("x")
    assert config.validate({})["strategies"] == list(config.STRATEGIES)


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"deployment_target": "cpu"}, "deployment_target", "cpu"),
        ({"budget": "30"}, "budget", 30.0),
        ({"budget": 30}, "budget", 30.0),
        ({"candidates": "4"}, "candidates", 4),
        ({"strategies": "rewrites, loops"}, "strategies", ["rewrites", "loops"]),
        ({"strategies": ["loops", "loops"]}, "strategies", ["loops"]),
        ({"strategies": "all"}, "strategies", ["loops", "rewrites", "templates"]),
        ({"tolerance": "1e-3"}, "tolerance", 1e-3),
        ({"tolerance": None}, "tolerance", None),
        ({"seed": 7}, "seed", 7),
        ({"layout": "khwc8", "deployment_target": "tensorrt"}, "layout", "khwc8"),
        ({"baseline_ms": "0.25"}, "baseline_ms", 0.25),
    ],
)
def test_accepted_values(given, key, value):
    assert config.validate(given)[key] == value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"deployment_target": "cpuu"}, ("deployment_target=cpuu", "'cpu'")),
        ({"precision": "int4"}, ("precision=int4",)),
        ({"budget": "soon"}, ("budget=soon",)),
        ({"budget": "nan"}, ("budget=nan",)),
        ({"budget": 1}, ("budget=1",)),
        ({"candidates": 1.5}, ("candidates=1.5",)),
        ({"candidates": True}, ("candidates=True",)),
        ({"candidates": "0"}, ("candidates=0",)),
        ({"strategies": ""}, ("strategies=",)),
        ({"strategies": "loops,magic"}, ("magic",)),
        ({"strategies": 5}, ("strategies=5",)),
        ({"tolerance": "0"}, ("tolerance=0",)),
        ({"seed": None}, ("seed=None",)),
        ({"baseline_ms": "0"}, ("baseline_ms=0",)),
        ({"layout": "nhwc"}, ("layout=nhwc",)),
        ({"layout": "khwc8"}, ("layout=khwc8", "deployment_target=torch")),
        ({"layout": "khwc8", "deployment_target": "cpu"}, ("layout=khwc8", "deployment_target=cpu")),
    ],
)
def test_refused_values_are_named_with_what_is_accepted(given, words):
    with pytest.raises(UserError) as caught:
        config.validate(given)
    assert caught.value.code == "bad_config_value"
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint.startswith("Accepted")


def test_an_unknown_key_gets_the_nearest_one():
    with pytest.raises(UserError) as caught:
        config.validate({"deployment-target": "cpu"})
    assert caught.value.code == "unknown_config_key"
    assert "Did you mean 'deployment_target'?" in caught.value.hint


def test_command_line_words():
    assert config.parse_assignments(["budget=10", "budget=20", "seed = 3"])["budget"] == 20.0
    with pytest.raises(UserError, match="key=value"):
        config.parse_assignments(["budget"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90", {"budget": "90"}),
        ("90s", {"budget": "90"}),
        ("2m", {"budget": "120.0"}),
        ("16c", {"candidates": "16"}),
        (" 90s , 16C", {"budget": "90", "candidates": "16"}),
    ],
)
def test_a_budget_is_seconds_candidates_or_both(text, found):
    assert config.parse_budget(text) == found
    assert config.validate(found)


@pytest.mark.parametrize("text", ["", "soon", "10s,20s", "5c,6c", "nan", "1h", "s", "10s,"])
def test_a_bad_budget_shows_the_form(text):
    with pytest.raises(UserError) as caught:
        config.parse_budget(text)
    assert "90s,16c" in caught.value.hint


def region(*dtypes):
    tensors = tuple(RegionTensor(name=f"t{k}", dtype=d, shape=(2,)) for k, d in enumerate(dtypes))
    return RegionSpec(
        namespace="a", name="R", version="1", inputs=tensors, outputs=tensors[-1:], aten_ops=(), digest="d", torch_version="2"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "target", "dtypes", "refused"),
    [
        ("captured", "cpu", (DType.FLOAT16,), False),
        ("fp16", "cpu", (DType.FLOAT16, DType.INT64), False),
        ("fp16", "cpu", (DType.FLOAT32,), True),
        ("fp32", "torch", (DType.BFLOAT16,), True),
        ("bf16", "cpu", (DType.BFLOAT16, DType.BOOL), False),
        ("fp32", "cpu", (DType.INT32,), False),
        ("fp16", "tensorrt", (DType.FLOAT32,), False),
    ],
)
def test_a_precision_that_the_region_has_not_is_refused_before_a_job(precision, target, dtypes, refused):
    checked = config.validate({"precision": precision, "deployment_target": target})
    if not refused:
        config.check_region(checked, region(*dtypes))
        return
    with pytest.raises(UserError, match="the region was captured in") as caught:
        config.check_region(checked, region(*dtypes))
    assert caught.value.code == "precision_not_available"


# ---- docs/reference/kernelgen.md -------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "kernelgen.md"


def _default(key):
    if key.default is None:
        return "-"
    return f"`{','.join(key.default) if isinstance(key.default, list) else key.default}`"


def _rows(text, head):
    """Give the rows of the table whose first heading is ``head``, as lists of cells."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(f"| {head} |"))
    rows = []
    for line in lines:
        if line.startswith("|") and not line.startswith("|---"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows and not line.startswith("|"):
            break
    return rows


def test_the_page_has_every_key():
    wanted = [[f"`{k.name}`", k.type, _default(k), k.allowed, k.meaning] for k in config.KEYS]
    assert _rows(PAGE.read_text(), "key") == wanted


def test_the_page_has_every_strategy_and_verdict():
    from ytk_gaia.evaluator.verdicts import Verdict

    text = PAGE.read_text()
    assert [row[0].strip("`") for row in _rows(text, "strategy")] == list(config.STRATEGIES)
    assert [row[0].strip("`") for row in _rows(text, "verdict")] == [v.value for v in Verdict]
