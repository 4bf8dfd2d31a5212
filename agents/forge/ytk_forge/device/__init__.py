"""Device code: CUDA C++ -> cubin, and what a cubin says about itself."""
