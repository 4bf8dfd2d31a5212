"""Run spconv's own convolutions on a CPU as they are meant: with a bias, which spconv refuses in eval mode, and without a race.

Imports neither torch nor spconv: a model that uses them has loaded them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def add_bias_apart(model: torch.nn.Module) -> None:
    """Let every spconv convolution of a model add its bias after the sum, as spconv does while it trains.

    Layers with an activation of their own are left alone: it comes after the bias.
    """
    conv = sys.modules.get("spconv.pytorch.conv")
    if conv is None:
        return
    for layer in model.modules():
        if isinstance(layer, conv.SparseConvolutionBase) and layer.bias is not None and not layer.conv1x1:
            layer._conv_forward = functools.partial(_convolve, layer)  # noqa: SLF001 - the one place all of spconv's convolutions share


@contextlib.contextmanager
def in_one_thread(model: torch.nn.Module) -> Iterator[None]:
    """Let torch have one thread while a model with layers of spconv runs.

    spconv's threads add to one row at once: about once in forty calls of an inverse convolution some elements are wrong.
    """
    conv = sys.modules.get("spconv.pytorch.conv")
    if conv is None or not any(isinstance(layer, conv.SparseConvolutionBase) for layer in model.modules()):
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _convolve(
    layer: Any, training: bool, tensor: Any, weight: Any, bias: Any, add_input: Any = None, **options: Any
) -> Any:
    convolve = type(layer)._conv_forward  # noqa: SLF001 - as above
    plain = layer.act_type.value == 0 and add_input is None
    if bias is None or not plain:
        return convolve(layer, training, tensor, weight, bias, add_input, **options)
    result = convolve(layer, training, tensor, weight, None, None, **options)
    return result.replace_feature(result.features + bias)
