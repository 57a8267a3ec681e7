"""Tensors in, tensors out; knows no path and no rank."""
