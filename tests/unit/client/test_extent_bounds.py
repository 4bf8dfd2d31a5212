"""Extents that are expressions of open axes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ytk_client.extent_bounds import bounds

SMALL = {"s0": (1, 8), "s1": (2, 3)}
LARGE = {"s0": (1, 1 << 20), "s1": (2, 3)}


@pytest.mark.parametrize(
    ("text", "symbols", "wanted"),
    [
        ("s0", SMALL, (1, 8)),
        ("7", {}, (7, 7)),
        ("2*s0 + 1", SMALL, (3, 17)),
        ("2*s0 + 1", LARGE, (3, 2 * (1 << 20) + 1)),
        ("s0 - s0//2", SMALL, (1, 4)),  # exact, which the ends alone are not
        ("((s0 - 1)//2) + 1", SMALL, (1, 4)),
        ("floor(s0/2 )", SMALL, (0, 4)),
        ("ceiling(s0/3)", SMALL, (1, 3)),
        ("-s0 + 10", SMALL, (2, 9)),
        ("s0*s1", SMALL, (2, 24)),
        ("s0**2", SMALL, (1, 64)),
        ("Max(4, s0)", SMALL, (4, 8)),
        ("Min(4, s0, s1)", SMALL, (1, 3)),
        ("Mod(s0, 4)", SMALL, (0, 3)),
        ("Mod(s0, 4)", LARGE, (0, 3)),
        ("(s0//16)*s1", LARGE, (0, 3 << 16)),
        ("s0 - s0//2", LARGE, None),  # the ends would give negative extents
        ("s2 + 1", SMALL, None),
        ("s0 + ", SMALL, None),
        ("sqrt(s0)", SMALL, None),
        ("s0.real", SMALL, None),
        ("4//(s0 - 1)", SMALL, None),
        ("4//(s0 - 5)", LARGE, None),
        ("unk__3", SMALL, None),
    ],
)
def test_bounds(text, symbols, wanted):
    assert bounds(text, symbols) == wanted


EXPRESSIONS = st.recursive(
    st.sampled_from(["s0", "s1", "2", "3"]),
    lambda inner: st.builds(
        "({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%"]), st.sampled_from(["2", "3", "s1"])
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(text=EXPRESSIONS, s0=st.integers(1, 1 << 20), s1=st.integers(2, 3))
def test_no_value_lies_outside(text, s0, s1):
    found = bounds(text, LARGE)
    if "s0" in text and (text.count("s0") > 1 or text.count("s1") > 1):
        assert found is None  # too many cases to try, and the ends say nothing
        return
    assert found is not None
    assert found[0] <= eval(text, {"s0": s0, "s1": s1}) <= found[1]
