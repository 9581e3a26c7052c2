"""Activation functions on a CPU."""

KERNELS = {"cpu_activation": "kernel:CpuActivation"}
KINDS = ("cpu",)
