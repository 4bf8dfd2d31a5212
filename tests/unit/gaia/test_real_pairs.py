"""Complex values inside a region, Fourier transforms, and factorisations with orthogonal factors, against torch."""

from __future__ import annotations

import pytest
import torch

from ytk_gaia.generator import orthogonal, real_pairs
from ytk_gaia.generator.lowering import CannotLowerError, LoweringPlan, decompose, lower

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
PLAN = LoweringPlan("base", "loops")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def rewritten(function, *args):
    """Run a function's graph after the pass, as torch would."""
    module = decompose(torch.export.export(Call(function), args), PLAN).graph_module
    assert real_pairs.has_complex(module)
    real_pairs.rewrite(module)
    assert not real_pairs.has_complex(module)
    (found,) = module(*args)
    return found


@pytest.mark.parametrize("length", [7, 36, 97])
def test_transforms_of_any_length(length):
    x = torch.randn(3, length)
    expected = torch.view_as_real(torch.fft.fft(x))
    found = rewritten(lambda t: torch.view_as_real(torch.fft.fft(t)), x)
    assert (found - expected).abs().max() < 2e-6 * length**0.5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("size", [8, 9])
def test_there_and_back_over_two_dims(size):
    def function(t):
        return torch.fft.irfft2(torch.fft.rfft2(t, norm="ortho"), s=t.shape[-2:], norm="ortho")

    x = torch.randn(2, 6, size)
    assert torch.allclose(rewritten(function, x), x, atol=2e-6)


def test_arithmetic_of_pairs():
    def function(a, b, r):
        z, w = torch.complex(a, b), torch.polar(r, a)
        q = (z * w + z.conj() * 2 - 1j) / (w + 3) + torch.exp(z) * z.abs() - torch.log(w)
        return torch.view_as_real(q @ w.mT) + torch.angle(z).sum()

    a, b, r = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4) + 0.5
    assert torch.allclose(rewritten(function, a, b, r), function(a, b, r), rtol=1e-5, atol=1e-5)


def test_what_has_no_real_form_is_named():
    program = torch.export.export(
        Call(lambda a: torch.view_as_real(torch.special.expit(torch.complex(a, a)))), (torch.randn(4),)
    )
    with pytest.raises(CannotLowerError, match=r"complex"):
        lower(program, PLAN)
    long = torch.export.export(Call(lambda a: torch.fft.fft(a).abs()), (torch.randn(509),))
    with pytest.raises(CannotLowerError, match="prime length 509"):
        lower(long, PLAN)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (2, 3, 6), (1, 1)])
def test_qr_has_the_signs_of_lapack(shape):
    a = torch.randn(shape)
    for mode in ("reduced", "complete"):
        for found, expected in zip(orthogonal.qr(a, mode), torch.linalg.qr(a, mode), strict=True):
            assert torch.allclose(found, expected, atol=3e-6)
    packed, factors = orthogonal.geqrf(a)
    other = torch.randn(*shape[:-1], 2)
    assert torch.allclose(orthogonal.ormqr(packed, factors, other), torch.ormqr(packed, factors, other), atol=3e-6)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (2, 3, 6), (0, 4)])
def test_singular_values(shape):
    a = torch.randn(shape)
    for full in (False, True):
        u, s, vt = orthogonal.svd(a, full)
        expected = torch.linalg.svd(a, full_matrices=full)
        assert [t.shape for t in (u, s, vt)] == [t.shape for t in expected]
        assert torch.allclose(s, expected.S, atol=3e-6)
        size = s.shape[-1]
        assert torch.allclose((u[..., :size] * s.unsqueeze(-2)) @ vt[..., :size, :], a, atol=5e-6)
        assert torch.allclose(u.mT @ u, torch.eye(u.shape[-1]).expand_as(u.mT @ u), atol=5e-6)
    if a.numel():
        assert torch.allclose(a @ orthogonal.pinv(a) @ a, a, atol=1e-4)


def test_eigenvalues_where_magnitudes_meet():
    mirrored = torch.diag(torch.tensor([1.0, -1.0, 1.0, 2.0]))
    values, vectors = orthogonal.eigh(mirrored)
    assert torch.equal(values, torch.tensor([-1.0, 1.0, 1.0, 2.0]))
    a = torch.randn(2, 6, 6)
    values, vectors = orthogonal.eigh(a)  # reads the lower triangle alone, as torch does
    assert torch.allclose(values, torch.linalg.eigvalsh(a), atol=1e-5)
    whole = a.tril() + a.tril(-1).mT
    assert torch.allclose(whole @ vectors, vectors * values.unsqueeze(-2), atol=2e-5)
