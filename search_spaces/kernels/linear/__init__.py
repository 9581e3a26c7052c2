"""Linear layers: a matrix product with bias and activation in one kernel, or in two."""

KERNELS = {"linear": "kernel:Linear"}
