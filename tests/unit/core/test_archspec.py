"""Arch specs: parse, print, compare, nearest, this host."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ytk_core import archspec
from ytk_core.archspec import (
    FIELDS,
    ArchSpec,
    device_levels,
    host_arch_specs,
    host_device_levels,
    host_runtime,
    nearest,
)
from ytk_core.errors import NotAvailableError, UserError

GOOD = [
    ("arm64-sm87-dos6010-cu114-trt86", "tensorrt", (8, 6), "gpu"),
    ("amd64-sm90-linux-cu130-trt1014", "tensorrt", (10, 14), "gpu"),
    ("amd64-sm90a-linux-cu130-trt101", "tensorrt", (10, 1), "gpu"),
    ("arm64-sm110-jp7-cu130-trt114", "tensorrt", (11, 4), "gpu"),
    ("amd64-cpuv4-linux-glibc236-ov20264", "openvino", (2026, 4), "cpu"),
    ("amd64-cpuv2-linux-glibc231-ort132", "onnxruntime", (1, 32), "cpu"),
    ("arm64-cpu82-dos6010-glibc231-ov20252", "openvino", (2025, 2), "cpu"),
]


@pytest.mark.parametrize(("text", "engine", "version", "kind"), GOOD)
def test_parse_and_print(text, engine, version, kind):
    spec = ArchSpec.parse(text)
    assert str(spec) == text
    assert (spec.engine_name, spec.engine_version, spec.device_kind) == (engine, version, kind)
    assert ArchSpec.parse(str(spec)) == spec
    assert hash(ArchSpec.parse(text)) == hash(spec)


SPECS = st.one_of(
    st.builds(
        lambda cpu, sm, os, cu, trt: ArchSpec(cpu, f"sm{sm}", os, f"cu{cu}", f"trt{trt}"),
        st.sampled_from(["amd64", "arm64"]),
        st.integers(50, 129),
        st.sampled_from(["linux", "dos6010", "jp6"]),
        st.integers(100, 139),
        st.sampled_from(["86", "101", "1014", "114"]),
    ),
    st.builds(
        lambda level, glibc, engine: ArchSpec("amd64", f"cpuv{level}", "linux", f"glibc2{glibc}", engine),
        st.integers(2, 4),
        st.integers(10, 45),
        st.sampled_from(["ov20264", "ort132"]),
    ),
)


@given(SPECS, SPECS)
def test_round_trip_and_difference(a, b):
    assert ArchSpec.parse(str(a)) == a
    assert a.differing_fields(b) == b.differing_fields(a)
    assert (a.differing_fields(b) == ()) == (a == b)
    assert list(a.differing_fields(b)) == [
        f for f in FIELDS if str(a).split("-")[FIELDS.index(f)] != str(b).split("-")[FIELDS.index(f)]
    ]


BAD = [
    ("", "'device' is missing"),
    ("amd64-cpuv3-linux", "3 fields instead of 5, 'runtime' is missing"),
    ("amd64-cpuv3-linux-glibc236-ov20264-x", "6 fields"),
    ("x86-cpuv3-linux-glibc236-ov20264", "'cpu' is 'x86'"),
    ("amd64-cpuv5-linux-glibc236-ov20264", "'device' is 'cpuv5'"),
    ("amd64-cpu82-linux-glibc236-ov20264", "no amd64 CPU level"),
    ("arm64-cpuv3-linux-glibc236-ov20264", "no arm64 CPU level"),
    ("amd64-cpuv3-windows-glibc236-ov20264", "'os' is 'windows'"),
    ("amd64-cpuv3-linux-cu114-ov20264", "does not go with the device 'cpuv3'"),
    ("arm64-sm87-linux-glibc231-trt86", "does not go with the device 'sm87'"),
    ("amd64-cpuv3-linux-glibc236-trt86", "needs a GPU"),
    ("amd64-cpuv3-linux-glibc236-tvm1", "'engine' is 'tvm1'"),
    ("amd64-cpuv3-linux-glibc236-ov", "'engine' is 'ov'"),
    ("AMD64-cpuv3-linux-glibc236-ov20264", "'cpu' is 'AMD64'"),
    ("amd64-cpuv3-linux-glibc236-ov20264\n", "'engine'"),
    ("amd64-cpuv3-linux--ov20264", "'runtime' is ''"),
    ("\u0661md64-cpuv3-linux-glibc236-ov20264", "'cpu'"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_spec_names_the_field(text, message):
    with pytest.raises(UserError) as caught:
        ArchSpec.parse(text)
    assert caught.value.code == "bad_arch_spec"
    assert message in caught.value.message
    assert "ytk embedded workers" in caught.value.hint


def test_nearest_prefers_the_same_board_with_another_engine_version():
    wanted = ArchSpec.parse("arm64-sm87-dos6010-cu114-trt101")
    existing = [
        ArchSpec.parse(text)
        for text in (
            "amd64-sm90-linux-cu130-trt1014",
            "arm64-sm87-dos6010-cu114-trt86",
            "arm64-sm87-dos6010-cu114-trt1014",
            "arm64-sm110-dos6010-cu114-trt101",
            "amd64-cpuv4-linux-glibc236-ov20264",
        )
    ]
    for seed in range(5):
        random.Random(seed).shuffle(existing)
        assert nearest(wanted, existing) == (ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86"), ("engine",))
    assert nearest(wanted, [existing[0], wanted]) == (wanted, ())
    assert nearest(wanted, []) is None


V4 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave avx512f avx512bw avx512cd avx512dq avx512vl"


def test_levels_from_flags():
    flags = V4.split()
    assert device_levels("amd64", flags) == ["cpuv4", "cpuv3", "cpuv2"]
    assert device_levels("amd64", [f for f in flags if f != "avx512vl"]) == ["cpuv3", "cpuv2"]
    # A gap below ends the list: AVX-512 without FMA is no v4.
    assert device_levels("amd64", [f for f in flags if f != "fma"]) == ["cpuv2"]
    assert device_levels("amd64", []) == []
    assert device_levels("arm64", ["fp", "asimd", "atomics", "asimdrdm", "fphp", "asimdhp", "asimddp"]) == [
        "cpu82",
        "cpu80",
    ]
    assert device_levels("arm64", ["fp", "asimd", "atomics"]) == ["cpu80"]


def test_levels_of_a_cpuinfo(tmp_path, monkeypatch):
    monkeypatch.setattr(archspec.platform, "machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {V4}\nbugs\t: x\n\nprocessor : 1\nflags : pni\n")
    assert host_device_levels(tmp_path / "cpuinfo") == ["cpuv4", "cpuv3", "cpuv2"]
    (tmp_path / "cpuinfo").write_text("flags : pni\n")
    with pytest.raises(NotAvailableError, match="cx16"):
        host_device_levels(tmp_path / "cpuinfo")
    monkeypatch.setattr(archspec.platform, "machine", lambda: "riscv64")
    with pytest.raises(NotAvailableError, match="riscv64"):
        host_device_levels(tmp_path / "cpuinfo")


def test_this_host():
    specs = host_arch_specs("ov20264")
    assert [spec.device for spec in specs] == host_device_levels()
    assert {spec.runtime for spec in specs} == {host_runtime()}
    assert all(str(spec).endswith("-ov20264") for spec in specs)
    with pytest.raises(UserError, match="'engine'"):
        host_arch_specs("openvino")


def test_another_c_library(monkeypatch):
    monkeypatch.setattr(archspec.os, "confstr", lambda _name: (_ for _ in ()).throw(ValueError("unrecognized")))
    with pytest.raises(NotAvailableError, match="not glibc"):
        host_runtime()
