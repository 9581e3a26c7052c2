"""Sums, products, broadcasts and casts of independent elements."""

KERNELS = {"elementwise": "kernel:Elementwise"}
