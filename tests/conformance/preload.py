"""What the server of the workers imports once: seconds each, milliseconds to fork."""

import onnxruntime  # noqa: F401 - imported for its side effect
import torch

from ytk_client.frontend import faithful  # noqa: F401 - as above

from conformance.opdb import entries

torch.set_num_threads(1)
entries()
