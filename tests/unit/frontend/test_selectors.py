"""The grammar of ``--plugin``: a table, round trips, and errors that name their place."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ytk_client.frontend.selectors import Kind, Lift, Selector, Where, parse_selector, parse_selectors
from ytk_core.errors import UserError


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("yasp::A=LiteMLA", ("yasp", "A", Kind.CLASS, ("LiteMLA",), False, Where(), Lift.AUTO, True)),
        ("::A=LiteMLA:around", ("", "A", Kind.CLASS, ("LiteMLA",), True, Where(), Lift.AUTO, True)),
        ("a.b::A=pkg.Cls@nojoin:", None),
        ("abc::A=pkg.Cls:around@nojoin", ("abc", "A", Kind.CLASS, ("pkg.Cls",), True, Where(), Lift.AUTO, False)),
        (
            "yasp::D=ConvNormAct@where=*.0.blocks.1.depth_conv,*.local.*,!*.x",
            (
                "yasp",
                "D",
                Kind.CLASS,
                ("ConvNormAct",),
                False,
                Where(("*.0.blocks.1.depth_conv", "*.local.*"), ("*.x",)),
                Lift.AUTO,
                True,
            ),
        ),
        ("n::A=C@lift=none@where=!a", ("n", "A", Kind.CLASS, ("C",), False, Where((), ("a",)), Lift.NONE, True)),
        (
            "n::A=C@where=head@1@lift=fold_conv_bn_seq",
            ("n", "A", Kind.CLASS, ("C",), False, Where(("head@1",)), Lift.FOLD_SEQ, True),
        ),
        (
            "n::A=call:torch.nn.functional.pad",
            ("n", "A", Kind.CALL, ("torch.nn.functional.pad",), False, Where(), Lift.AUTO, True),
        ),
        ("n::A=mod:blocks.0:around", ("n", "A", Kind.MODULE, ("blocks.0",), True, Where(), Lift.AUTO, True)),
        ("n::A=conv2d_3...add_1", ("n", "A", Kind.SPAN, ("conv2d_3", "add_1"), False, Where(), Lift.AUTO, True)),
        ("n::A=a,b,c@lift=none", ("n", "A", Kind.NODES, ("a", "b", "c"), False, Where(), Lift.NONE, True)),
    ],
)
def test_what_a_selector_says(text, want):
    if want is None:
        with pytest.raises(UserError):
            parse_selector(text)
        return
    assert parse_selector(text) == Selector(text, *want)


@pytest.mark.parametrize(
    ("text", "marked", "says"),
    [
        ("A=LiteMLA", "A", "no '::'"),
        ("yasp::A", "", "no '='"),
        ("1x::A=C", "1x", "no namespace"),
        ("yasp::9A=C", "9A", "no plugin name"),
        ("yasp::=C", "", "no name"),
        ("yasp::A=", "", "no region"),
        ("yasp::A=:around", "", "no region"),
        ("yasp::A=C:arround", ":arround", "not known"),
        ("yasp::A=cal:x.y", ":x.y", "not known"),
        ("yasp::A=call:x-y", "x-y", "dotted path"),
        ("yasp::A=a...", "", "missing"),
        ("yasp::A=a...b...c", "a...b...c", "two ends"),
        ("yasp::A=a...a", "a", "named twice"),
        ("yasp::A=a,,b", "", "missing"),
        ("yasp::A=a,b:around", ":around", "modules and calls"),
        ("yasp::A=a,b@where=x", "@where=x", "not nodes"),
        ("yasp::A=C@were=x", "@were=x", "not known"),
        ("yasp::A=C@where=a,", "", "missing"),
        ("yasp::A=C@where=a b", "a b", "no module-path glob"),
        ("yasp::A=C@lift=fold", "fold", "no way to lift"),
        ("yasp::A=C@nojoin", "@nojoin", "without ':around'"),
        ("yasp::A=C:around@nojoin=1", "@nojoin=1", "no value"),
        ("yasp::A=C@lift=none@lift=none", "@lift=none", "twice"),
        ("yasp::A=C-D", "C-D", "class name"),
    ],
)
def test_an_error_marks_its_place(text, marked, says):
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        parse_selector(text)
    assert caught.value.code == "bad_selector"
    assert caught.value.hint
    head, shown, marker = caught.value.message.splitlines()
    assert shown == f"  {text}"
    start, end = marker.index("^") - 2, len(marker) - 2
    assert text[start:end] == marked or (not marked and end == start + 1)
    assert f"column {start + 1}:" in head


def test_hints_name_the_nearest_word():
    for text, hint in (("n::A=C@were=x", "@where"), ("n::A=C:arround", ":around"), ("n::A=cal:x", "call:")):
        with pytest.raises(UserError) as caught:
            parse_selector(text)
        assert hint in caught.value.hint


def test_two_selectors_for_one_name():
    with pytest.raises(UserError) as caught:
        parse_selectors(["n::A=C", "n::A=D"])
    assert caught.value.code == "duplicate_plugin"
    with pytest.raises(UserError, match="two selectors name the plugin A"):
        parse_selectors(["n::A=C", "m::A=D"])
    assert len(parse_selectors(["n::A=C", "n::B=C"])) == 2


word = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
glob = st.from_regex(r"[a-z*?][a-z0-9.*?_]{0,8}", fullmatch=True)
path = st.lists(word, min_size=1, max_size=3).map(".".join)


@st.composite
def selectors(draw) -> Selector:
    kind = draw(st.sampled_from(list(Kind)))
    count = {Kind.SPAN: (2, 2), Kind.NODES: (2, 4)}.get(kind, (1, 1))
    names = draw(st.lists(word if count[1] > 1 else path, min_size=count[0], max_size=count[1], unique=True))
    modules = count[1] == 1
    around = modules and draw(st.booleans())
    include, exclude = (tuple(draw(st.lists(glob, max_size=2))) if modules else () for _ in range(2))
    namespace = draw(st.one_of(st.just(""), path))
    return Selector(
        "", namespace, draw(word), kind, tuple(names), around, Where(include, exclude), draw(st.sampled_from(list(Lift))),
        not around or draw(st.booleans()),
    )  # fmt: skip


@given(selectors())
def test_the_canonical_text_means_the_same(selector):
    again = parse_selector(str(selector))
    assert str(again) == str(selector)
    assert (again.kind, again.names, again.where, again.lift) == (
        selector.kind,
        selector.names,
        selector.where,
        selector.lift,
    )


@given(st.text(alphabet="aA1:=@.,!* _-", max_size=30))
def test_any_text_is_a_selector_or_a_marked_error(text):
    try:
        selector = parse_selector(text)
    except UserError as caught:
        error = caught
    else:
        assert selector.text == text
        return
    assert error.code == "bad_selector"
    assert "column" in error.message


@given(st.lists(glob, max_size=3), st.lists(glob, max_size=3), path)
def test_exclusion_wins(include, exclude, module):
    where = Where(tuple(include), (*exclude, module.replace("[", "?")))
    assert not where.admits(module)
