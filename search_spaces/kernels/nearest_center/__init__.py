"""The nearest of some centers to every point."""

KERNELS = {"nearest_center": "kernel:NearestCenter"}
