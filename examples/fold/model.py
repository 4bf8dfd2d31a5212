"""A small patch denoiser: it predicts overlapping patches and puts them back together with ``nn.Fold``."""

import torch
from torch import nn

SIZE = 64
PATCH = 4
STRIDE = 2


class Model(nn.Module):
    """Image (N, 3, 64, 64) float32 in, denoised image of the same shape out; the last operator is ``nn.Fold``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=STRIDE, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1, groups=24),
            nn.Conv2d(24, 32, 1),
            nn.ReLU(),
        )
        self.to_patches = nn.Conv2d(32, 3 * PATCH * PATCH, 1)
        # Neighbouring patches overlap by half: a triangular window makes their weights add up to one.
        ramp = torch.tensor([0.25, 0.75, 0.75, 0.25])
        self.register_buffer("window", torch.outer(ramp, ramp).reshape(1, PATCH * PATCH, 1).repeat(1, 3, 1))
        self.fold = nn.Fold((SIZE, SIZE), kernel_size=PATCH, stride=STRIDE, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.to_patches(self.encoder(image)).flatten(2)
        return self.fold(patches * self.window)


def get_fwd_args() -> tuple[torch.Tensor, ...]:
    """Example inputs; the image is noise, fixed by its seed."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(1, 3, SIZE, SIZE, generator=generator),)
