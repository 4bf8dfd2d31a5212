"""Memory that is allocated and not set decides nothing: not what is compared, not what is written."""

import pytest

from ytk_client.frontend import recording, undefined

UNUSED_NOISE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rrelu = nn.RReLU()

    def forward(self, x):
        return self.rrelu(x) + 1

def get_model():
    return Model()

def get_fwd_args():
    return (torch.linspace(-2, 2, 24).reshape(2, 12),)
"""


@pytest.fixture
def garbage(monkeypatch):
    """Whatever runs the program finds large numbers in memory that it does not set, as a busy process does."""
    record = recording.record

    def with_garbage(*args, **kwargs):
        with undefined.Filled(1.97e29):
            return record(*args, **kwargs)

    monkeypatch.setattr("ytk_client.frontend.comparison.record", with_garbage)


@pytest.mark.usefixtures("garbage")
def test_what_a_decomposition_allocates_is_not_compared(run_prepare):
    """The decomposition of rrelu allocates a noise that an evaluation never reads, on the border of its region."""
    report, _ = run_prepare(UNUSED_NOISE, samples=1)
    assert [row.name for row in report.rows] == ["RreluWithNoiseFunctional"]
    assert not [note for note in report.notes if "does not set" in note]
