"""Kernels written by hand: the frame to write one in, and what can be said of one before a job is spent."""
