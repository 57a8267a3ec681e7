"""Triton kernels for training on a GPU; only those who train with them import them."""
