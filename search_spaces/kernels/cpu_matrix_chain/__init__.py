"""Products of four matrices on a CPU."""

KERNELS = {"cpu_matrix_chain": "kernel:CpuMatrixChain"}
KINDS = ("cpu",)
