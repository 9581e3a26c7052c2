"""Linear layers with an activation on a CPU."""

KERNELS = {"cpu_linear_activation": "kernel:CpuLinearActivation"}
KINDS = ("cpu",)
