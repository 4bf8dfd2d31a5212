"""CUDA without a GPU: the NVRTC compiler, and what a cubin says about itself."""
