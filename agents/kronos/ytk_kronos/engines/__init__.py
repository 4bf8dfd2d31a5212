"""Engines behind one protocol: :mod:`ytk_kronos.engines.base`."""
