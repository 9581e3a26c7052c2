"""Tensors with their dimensions in another order."""

KERNELS = {"permute": "kernel:Permute"}
