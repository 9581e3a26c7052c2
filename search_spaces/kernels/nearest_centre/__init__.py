"""The nearest of some centres to every point."""

KERNELS = {"nearest_centre": "kernel:NearestCentre"}
