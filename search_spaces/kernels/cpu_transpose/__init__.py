"""Transposed matrices on a CPU."""

KERNELS = {"cpu_transpose": "kernel:CpuTranspose"}
KINDS = ("cpu",)
