"""The product of four matrices."""

KERNELS = {"matrix_chain": "kernel:MatrixChain"}
