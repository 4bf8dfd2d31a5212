"""What the server of the workers imports once: seconds each, milliseconds to fork."""

import gc

import onnxruntime  # noqa: F401 - imported for its side effect
import torch

from ytk_client.frontend import faithful, torch_adapter  # noqa: F401 - as above

from conformance.opdb import entries

torch.set_num_threads(1)
entries()
# torch's tables and ours are built at the first use; no engine runs here, for its threads would not survive a fork.
torch_adapter.decompose(torch.export.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),), strict=False))
# A million objects that stay: a collector that goes through them all again takes a third of the time.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 50, 1000)
