"""What holds for every test: the same random numbers whatever ran before it, and properties tried without a clock."""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

try:
    # Here, before any module of tests: torch begins every process with another seed, and some modules draw while they are imported.
    import torch
except ModuleNotFoundError:
    torch = None

# A slow moment of the machine is no failure, and an example that nobody has seen yet is for a nightly run, not for a gate.
settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_configure() -> None:
    """Undo what a shell does to what it starts in the background: Ctrl-C is ignored, and by all that is started from there."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


# No test sees other weights or samples because another ran before it: modules that draw where they are imported, fixtures
# that several tests share, and the tests begin with seeds of their own.


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        seed_all(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    seed_all(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    seed_all(2)


def seed_all(seed: int) -> None:
    """Begin all generators anew."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the very generator that models of tests may use
    if torch is not None:
        torch.manual_seed(seed)
