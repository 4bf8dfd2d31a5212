"""Kernel bundles: any text round trips, renaming touches the contract only, the unit compiles."""

import subprocess

import msgspec
import pytest
from golden import builders, metas
from hypothesis import given, settings
from hypothesis import strategies as st

from ytk_core.abi import __path__ as abi_path
from ytk_core.errors import FormatError
from ytk_core.formats.kernel_bundle import (
    KernelBundle,
    bundle_digest,
    parse_bundle,
    renamed,
    render_bundle,
    translation_unit,
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
AWKWARD = st.sampled_from(['"""', "'''", "\\", '"', "'", "\r\n", "\r", '\\"', "{x}", "\n", "\t", "\x0c", "\u2028"])


@given(
    st.lists(st.one_of(TEXT, AWKWARD), max_size=6).map("".join),
    st.lists(st.one_of(TEXT, AWKWARD), max_size=6).map("".join),
)
@settings(max_examples=80, deadline=None)
def test_any_text_round_trips(header, tail):
    bundle = KernelBundle(header=header, source="int fold_launch(...);" + tail, meta=metas.fold())
    text = render_bundle(bundle)
    assert parse_bundle(text) == bundle
    assert render_bundle(parse_bundle(text)) == text


def test_renaming_changes_the_contract_only():
    text = render_bundle(builders.kernel_bundle())
    other = parse_bundle(renamed(text, name="Col2im", namespace="acme.ops"))
    want = msgspec.structs.replace(metas.fold(), plugin_name="Col2im", plugin_namespace="acme.ops")
    assert other == KernelBundle(header=builders.HEADER, source=builders.SOURCE, meta=want)
    assert parse_bundle(renamed(text, name="Col2im")).meta.plugin_namespace == "yasp"
    assert bundle_digest(other) != bundle_digest(builders.kernel_bundle())
    assert renamed(text, name="Fold") == text


@pytest.mark.parametrize("name", ["", "Col-2im", "2im", "a b", "x;y", "Col2im\n"])
def test_a_name_that_is_no_identifier(name):
    with pytest.raises(FormatError, match="plugin_name"):
        renamed(render_bundle(builders.kernel_bundle()), name=name)


def test_an_invalid_meta_is_not_rendered():
    meta = msgspec.structs.replace(metas.fold(), sites=0)
    with pytest.raises(FormatError, match="sites"):
        render_bundle(KernelBundle(header="", source="fold_launch(", meta=meta))


def test_the_translation_unit_compiles_and_errors_name_the_literal(tmp_path):
    def build(bundle):
        command = ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-I", f"{next(iter(abi_path))}/include", "-"]
        return subprocess.run(
            command, input=translation_unit(bundle), capture_output=True, text=True, timeout=600, check=False
        )

    good = build(builders.kernel_bundle())
    assert good.returncode == 0, good.stderr
    bad = build(KernelBundle(header=builders.HEADER, source=builders.SOURCE + "\nerror here;\n", meta=metas.fold()))
    assert "SOURCE:8:" in bad.stderr
