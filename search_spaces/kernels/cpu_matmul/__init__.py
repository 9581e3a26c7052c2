"""Matrix multiplication on a CPU."""

KERNELS = {"cpu_matmul": "kernel:CpuMatmul"}
KINDS = ("cpu",)
