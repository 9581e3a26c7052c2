"""The cross-entropy of logits and targets, forward and backward."""

KERNELS = {
    "cross_entropy": "kernel:CrossEntropy",
    "cross_entropy_backward": "backward:CrossEntropyBackward",
}
