"""Batches of matrix products."""

KERNELS = {"batched_matmul": "kernel:BatchedMatmul"}
