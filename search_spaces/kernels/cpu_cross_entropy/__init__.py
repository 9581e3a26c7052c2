"""The cross-entropy of logits and targets on a CPU."""

KERNELS = {"cpu_cross_entropy": "kernel:CpuCrossEntropy"}
KINDS = ("cpu",)
