"""Group norm of images in both memory layouts."""

KERNELS = {"group_norm": "kernel:GroupNorm"}
