"""Let torch.export see shipped operators where a model's library cannot be traced.

While a model is captured, functions and methods of that library are replaced; the model itself, its parameters and the
names of its modules stay as they are. What the model computes is still taken from the library, and the exported graph is
held against it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ytk_client.frontend.catalogue import known_code, spconv_models


@contextlib.contextmanager
def adapted(model: torch.nn.Module) -> Iterator[None]:
    """Give a context in which ``model`` calls operators of ``torch.ops.ytk_catalogue``."""
    with spconv_models.adapted(model), known_code.adapted(model):
        yield
