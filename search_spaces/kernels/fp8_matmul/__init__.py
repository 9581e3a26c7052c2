"""Matrix product of float8 codes with scales."""

KERNELS = {"fp8_matmul": "kernel:Fp8Matmul"}
