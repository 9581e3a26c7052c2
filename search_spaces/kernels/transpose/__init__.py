"""Transposed matrices."""

KERNELS = {"transpose": "kernel:Transpose"}
