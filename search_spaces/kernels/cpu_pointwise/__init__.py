"""Element-wise chains on a CPU, compiled by Inductor."""

KERNELS = {"cpu_pointwise": "kernel:CpuPointwise"}
KINDS = ("cpu",)
