"""Largest values and means of windows of images."""

KERNELS = {"pooling": "kernel:Pooling"}
