"""Linear layers of int8 activations and weights on a CPU."""

KERNELS = {"cpu_linear_int8": "kernel:CpuLinearInt8"}
KINDS = ("cpu",)
