"""The process that examines entries, one after the other, and may die of one."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from ytk_core.targets import load_profile

from conformance.examine import examine
from conformance.opdb import calls, dtype_for
from conformance.outcome import Outcome, SampleFinding


def serve(connection: Connection, source: str) -> None:
    """Answer jobs about the entries of a source ``(entry, dtype, profile, samples)``: per sample ``("sample", finding)``, then ``("done", None)``.

    Runs in a process of its own; ends with the connection.
    """
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Operators print, and torch dumps failed traces.
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    known = importlib.import_module(source).entries()
    with contextlib.suppress(EOFError):
        while True:
            name, dtype, profile, count, skip = connection.recv()
            for index, finding in enumerate(_findings(known[name], getattr(torch, dtype), profile, count, skip)):
                connection.send(("sample", skip + index, msgspec.to_builtins(finding)))
            connection.send(("done", None, None))


def _findings(entry: Any, wanted: torch.dtype, profile: str, count: int, skip: int) -> Any:
    dtype = dtype_for(entry, wanted)
    if dtype is None:
        return
    target = load_profile(profile)
    try:
        samples = list(calls(entry, dtype, count))
    except Exception as err:  # noqa: BLE001 - the samples are torch's; what they raise is no finding about us
        yield SampleFinding(outcome=Outcome.BLOCKED, code="no_sample", reason=f"{type(err).__name__}: {err}"[:300])
        return
    for call in samples[skip:]:
        yield examine(call, call.tensors, target)
