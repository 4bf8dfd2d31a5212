"""What holds for every test: the same random numbers whatever ran before it, and properties tried without a clock."""

from __future__ import annotations

import random
import signal
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

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


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Seed every generator, so that no test sees other weights or samples because another test ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the very generator that models of tests may use
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
