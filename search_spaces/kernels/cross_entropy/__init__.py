"""The cross-entropy of logits and targets."""

KERNELS = {"cross_entropy": "kernel:CrossEntropy"}
