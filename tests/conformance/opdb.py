"""The entries of torch's operator database and their samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from conformance.examine import Call


def entries() -> dict[str, Any]:
    """Give every entry by its full name (operator, variant)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {entry.formatted_name: entry for entry in op_db}


def dtype_for(entry: Any, wanted: torch.dtype) -> torch.dtype | None:
    """Give the dtype to sample an entry in, None where it has none such.

    An entry without float32 (integer and boolean operators) still counts in the float32 run, in a dtype of its own.
    """
    supported = entry.supported_dtypes("cpu")
    if wanted in supported:
        return wanted
    if wanted is not torch.float32 or not supported:
        return None
    return torch.int64 if torch.int64 in supported else sorted(supported, key=str)[0]


def calls(entry: Any, dtype: torch.dtype, count: int) -> Iterator[Call]:
    """Give the first samples of an entry; seeded, so that each run has the same ones."""
    torch.manual_seed(0)
    for index, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=False)):
        if index == count:
            return
        yield Call(entry.op, (sample.input, *sample.args), sample.kwargs)
