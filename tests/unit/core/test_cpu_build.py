"""Compiler flags: pure, by level, with an allow-list; and they really compile."""

import subprocess

import pytest

from ytk_core.archspec import ArchSpec, host_arch_specs
from ytk_core.cpu_build import MARCH, check_compile_flags, cxx_flags
from ytk_core.errors import UserError


def test_the_level_decides_the_architecture():
    for level, march in MARCH.items():
        cpu = "amd64" if level.startswith("cpuv") else "arm64"
        flags = cxx_flags(ArchSpec(cpu, level, "linux", "glibc236", "ov20264"))
        assert f"-march={march}" in flags
        assert not {"-march=native", "-ffast-math"} & set(flags)
    with pytest.raises(UserError, match="sm87"):
        cxx_flags(ArchSpec.parse("arm64-sm87-dos6010-cu114-trt86"))


@pytest.mark.parametrize(
    "flag",
    [
        "-ffast-math",
        "-Ofast",
        "-march=native",
        "-O2 -fplugin=x",
        "-I/",
        "-include",
        "-Wl,-rpath,/x",
        "-DX",
        "-o",
        "@file",
        "-lm",
        "",
        "-O3\n",
    ],
)
def test_other_flags_are_refused(flag):
    with pytest.raises(UserError) as caught:
        check_compile_flags(["-O3", flag])
    assert caught.value.code == "flag_not_allowed"
    assert repr(flag) in caught.value.message


def test_a_kernel_compiles_without_touching_the_floating_point_mode(tmp_path):
    source = tmp_path / "k.cpp"
    source.write_text(
        '#include <cmath>\nextern "C" __attribute__((visibility("default"))) void f(float* x, int n) {\n'
        "#pragma omp parallel for\nfor (int i = 0; i < n; ++i) x[i] = std::sqrt(x[i]) * 2 + 1; }\n"
        "void hidden() {}\n"
    )
    extra = [
        "-funroll-loops",
        "-fassociative-math",
        "-fno-signed-zeros",
        "-fno-trapping-math",
        "-mprefer-vector-width=256",
    ]
    outputs = []
    for name in ("a.so", "b.so"):
        flags = cxx_flags(host_arch_specs("ov20264")[-1], extra)
        subprocess.run(["g++", *flags, str(source), "-o", str(tmp_path / name)], check=True, timeout=600)
        outputs.append((tmp_path / name).read_bytes())
    assert outputs[0] == outputs[1]
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(tmp_path / "a.so")], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["f"]
    whole = subprocess.run(["nm", str(tmp_path / "a.so")], capture_output=True, text=True, check=True).stdout
    assert "set_fast_math" not in whole
