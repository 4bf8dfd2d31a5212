"""The shipped plugins as torch operators, and how models that need them get there.

``torch.ops.ytk_catalogue`` has one operator per entry of :mod:`ytk_core.catalogue`. Its eager implementation is the
entry's reference: plain torch, written from the definition. Importing :mod:`ytk_client.frontend.catalogue.operators`
registers them.
"""
