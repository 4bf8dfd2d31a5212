"""CUDA kernels on a CPU: correctness without a GPU. See ``runtime.cpp`` for how, :mod:`.build` for what is compiled."""
