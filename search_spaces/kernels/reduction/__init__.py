"""Sums, means, extrema and their places along rows or columns."""

KERNELS = {"reduction": "kernel:Reduction"}
