"""Scaled dot-product attention on a CPU."""

KERNELS = {"cpu_attention": "kernel:CpuAttention"}
KINDS = ("cpu",)
