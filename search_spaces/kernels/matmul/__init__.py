"""Matrix multiplication."""

KERNELS = {"matmul": "kernel:Matmul"}
