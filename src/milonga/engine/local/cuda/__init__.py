"""Sampling on a CUDA device at the speed of its memory: fused kernels, a static cache, decoding steps as graphs."""
