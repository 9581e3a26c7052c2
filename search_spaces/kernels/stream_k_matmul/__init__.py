"""Matrix multiplication whose last tiles are shared by all programs (stream-K)."""

KERNELS = {"stream_k_matmul": "kernel:StreamKMatmul"}
