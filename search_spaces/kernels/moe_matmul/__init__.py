"""The products of mixture-of-experts layers, each token with the matrices of its experts."""

KERNELS = {"moe_matmul": "kernel:MoeMatmul"}
