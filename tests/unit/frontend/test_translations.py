"""Our own translations give what torch gives, with standard nodes only."""

import pytest
import torch
from torch.nn import functional as F

from ytk_client.frontend import translations
from ytk_core.targets import load_profile

from conformance.examine import Call, examine
from conformance.outcome import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

NAN = torch.tensor([float("nan"), 1.0, 2.0, float("nan")])
X = torch.tensor([[3.0, -1.0, 2.0, 5.0, 0.5], [1.0, 7.0, -2.0, 0.0, 4.0]])


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.fmax, [NAN, torch.tensor([1.0, float("nan"), 3.0, float("nan")])]),
        (torch.fmin, [NAN, torch.tensor([1.0, float("nan"), 3.0, float("nan")])]),
        (torch.fmin, [torch.tensor([1, 5]), torch.tensor([2, 3])]),
        (torch.kthvalue, [X, 2, 1]),
        (lambda x: torch.kthvalue(x, 3, -1, keepdim=True), [X]),
        (torch.kthvalue, [torch.tensor(2.0), 1]),
        (torch.median, [X]),
        (torch.median, [NAN]),
        (torch.median, [X.int(), 1]),
        (torch.searchsorted, [X.sort().values, torch.tensor([[2.0, 9.0], [0.0, -5.0]])]),
        (lambda s, v: torch.searchsorted(s, v, right=True), [torch.tensor([1.0, 2.0, 2.0, 3.0]), X]),
        (lambda s, v: torch.searchsorted(s, v, side="right", out_int32=True), [torch.tensor([1.0, 2.0, 2.0]), X]),
        (torch.bucketize, [X, torch.tensor([0.0, 2.0, 4.0])]),
        (torch.squeeze, [torch.ones(1, 2, 1, 3), [0, 1, 2]]),
        (torch.squeeze, [torch.ones(2, 3), [0, -1]]),
        (F.adaptive_avg_pool3d, [torch.randn(1, 2, 5, 4, 7), (2, 3, 3)]),
        (F.adaptive_avg_pool3d, [torch.randn(2, 5, 4, 7), 1]),
        (F.pad, [torch.randn(1, 2, 4, 5), [2, 1, 0, 3], "circular"]),
        (F.pad, [torch.randn(1, 2, 4, 5), [1, -1, -2, 3]]),
        (F.pad, [torch.randn(1, 2, 4, 5), [1, -1, 2, 0], "replicate"]),
        (F.pad, [torch.arange(6).reshape(2, 3), [1, 2], "constant", 7]),
        (F.pad, [torch.randn(2, 3), [0, 0]]),
        (lambda x: torch.fft.fft(x).conj(), [torch.randn(6)]),
        (lambda x: torch.fft.rfft2(x).conj_physical(), [torch.randn(4, 6)]),
        (torch.fft.fft2, [torch.randn(5, 6), (7, 4)]),
        (torch.amax, [X]),
        (torch.amin, [X, [0, 1], True]),
        (torch.amax, [torch.tensor(2)]),
        (torch.hypot, [torch.tensor([0.0, 3.0, 1e25]), torch.tensor([0.0, -4.0, 1e25])]),
        (lambda x: torch.softmax(x, 1, dtype=torch.float64), [X]),
        (lambda x: torch.log_softmax(x, -1), [X]),
        (lambda x: torch.softmax(x, 0), [torch.tensor(2.0)]),
        (torch.nonzero, [torch.tensor(3.0)]),
        (torch.nonzero, [torch.tensor([[0.0, 1.0], [2.0, 0.0]])]),
    ],
    ids=str,
)
@pytest.mark.parametrize("profile", ["onnxruntime"])
def test_translation(function, args, profile):
    call = Call(function, args, {})
    found = examine(call, call.tensors, load_profile(profile))
    assert found.outcome is Outcome.NATIVE, found


def test_every_translation_has_another_owner_than_the_distrusted():
    assert not set(translations.TRANSLATIONS) & set(translations.DISTRUSTED)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.special.erfcx, [torch.tensor([-8.0, 0.0, 3.0, 12.0])]),  # distrusted
        (torch.median, [X, 1]),  # floats may be NaN
        (lambda s, v, o: torch.searchsorted(s, v, sorter=o), [X, X, X.argsort()]),
    ],
)
def test_what_has_no_words_is_carved(function, args):
    call = Call(function, args, {})
    found = examine(call, call.tensors, load_profile("onnxruntime"))
    assert found.outcome is Outcome.CARVED, found
