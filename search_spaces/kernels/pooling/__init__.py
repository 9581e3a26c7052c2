"""Largest values and means of windows of images."""

KERNELS = {"adaptive_pooling": "adaptive:AdaptivePooling", "pooling": "kernel:Pooling"}
