"""Reductions along rows or columns on a CPU."""

KERNELS = {"cpu_reduction": "kernel:CpuReduction"}
KINDS = ("cpu",)
