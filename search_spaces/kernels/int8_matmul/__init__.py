"""Matrix product of int8 codes with scales."""

KERNELS = {"int8_matmul": "kernel:Int8Matmul"}
