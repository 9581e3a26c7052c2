"""Scaled dot-product attention."""

KERNELS = {"attention": "kernel:Attention"}
