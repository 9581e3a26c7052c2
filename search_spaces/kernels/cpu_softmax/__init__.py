"""Row softmax on a CPU."""

KERNELS = {"cpu_softmax": "kernel:CpuSoftmax"}
KINDS = ("cpu",)
