"""Matrix product with weights of four bits."""

KERNELS = {"int4_matmul": "kernel:Int4Matmul"}
