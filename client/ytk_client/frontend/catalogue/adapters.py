"""Let torch.export see shipped operators where a model's library cannot be traced.

While a model is captured, functions and methods of that library are replaced; the model itself, its parameters and the
names of its modules stay as they are. What the model computes is still taken from the library, and the exported graph is
held against it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ytk_client.frontend.catalogue import spconv_models


@contextlib.contextmanager
def adapted(model: torch.nn.Module) -> Iterator[None]:
    """Give a context in which ``model`` calls operators of ``torch.ops.ytk_catalogue``."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(spconv_models.adapted(model))
        yield
