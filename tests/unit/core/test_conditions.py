"""Measurement conditions: reading what a machine offers, and deciding what is disturbed."""

import msgspec
import pytest

from ytk_core.conditions import Snapshot, drift_reason, make_conditions, snapshot

QUIET = Snapshot(load_1m=0.1, cpus=4, cpu_mhz=2600.0, temperature_c=50.0, throttle_count=3, governor="performance")


def test_a_full_machine(tmp_path):
    cpu, thermal, proc = tmp_path / "cpu", tmp_path / "thermal", tmp_path / "proc"
    for index, khz in enumerate((2_000_000, 3_000_000)):
        (cpu / f"cpu{index}/cpufreq").mkdir(parents=True)
        (cpu / f"cpu{index}/thermal_throttle").mkdir()
        (cpu / f"cpu{index}/cpufreq/scaling_cur_freq").write_text(f"{khz}\n")
        (cpu / f"cpu{index}/thermal_throttle/package_throttle_count").write_text("2\n")
    (cpu / "cpu0/cpufreq/scaling_governor").write_text("schedutil\n")
    for index, milli in enumerate(("45500", "61000", "-273000", "garbage")):
        (thermal / f"thermal_zone{index}").mkdir(parents=True)
        (thermal / f"thermal_zone{index}/temp").write_text(milli)
    proc.mkdir()
    (proc / "loadavg").write_text("1.25 0.5 0.2 1/100 42\n")
    seen = snapshot(cpu=cpu, thermal=thermal, proc=proc)
    assert seen == Snapshot(
        load_1m=1.25, cpus=seen.cpus, cpu_mhz=2500.0, temperature_c=61.0, throttle_count=4, governor="schedutil"
    )


def test_a_machine_that_says_nothing(tmp_path):
    seen = snapshot(cpu=tmp_path, thermal=tmp_path, proc=tmp_path)
    assert (seen.cpu_mhz, seen.temperature_c, seen.throttle_count, seen.governor) == (None, None, None, None)
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2000.5\ncpu MHz\t\t: 3000.5\n")
    assert snapshot(cpu=tmp_path, thermal=tmp_path, proc=tmp_path).cpu_mhz == 2500.5


def test_a_thermal_zone_that_is_off_is_no_temperature(tmp_path):
    (tmp_path / "thermal_zone0").mkdir()
    for milli in ("0", "-274000"):
        (tmp_path / "thermal_zone0/temp").write_text(milli)
        assert snapshot(thermal=tmp_path).temperature_c is None


def test_this_machine():
    seen = snapshot()
    assert seen.cpus >= 1
    assert seen.load_1m >= 0


@pytest.mark.parametrize(("before", "after", "word"), [
    ({}, {}, ""),
    ({"load_1m": 3.9}, {"load_1m": 3.9}, "load 3.90 on 4 CPUs"),
    ({}, {"load_1m": 2.0}, ""),
    ({}, {"load_1m": 6.0}, "load rose from 0.10 to 6.00"),
    ({}, {"cpu_mhz": 2000.0}, "from 2600 to 2000 MHz"),
    ({}, {"cpu_mhz": 2550.0}, ""),
    ({"cpu_mhz": None}, {"cpu_mhz": None}, ""),
    ({}, {"temperature_c": 71.0}, "rose by 21"),
    ({"temperature_c": None}, {}, ""),
    ({}, {"throttle_count": 5}, "2 thermal throttle events"),
    ({}, {"governor": "powersave"}, "from performance to powersave"),
])  # fmt: skip
def test_drift(before, after, word):
    reason = drift_reason(msgspec.structs.replace(QUIET, **before), msgspec.structs.replace(QUIET, **after), threads=2)
    assert word in reason
    assert bool(reason) is bool(word)


def test_conditions_say_whether_they_were_stable():
    run = {"iterations": 10, "warmup": 2, "threads": 2, "engine": "openvino"}
    assert make_conditions(QUIET, QUIET, **run).stable
    shaky = make_conditions(QUIET, msgspec.structs.replace(QUIET, throttle_count=9), **run)
    assert (shaky.stable, shaky.reason) == (False, "6 thermal throttle events")
