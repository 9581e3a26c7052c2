"""The cross-entropy of a linear layer over a large vocabulary, whose logits are never stored."""

KERNELS = {
    "linear_cross_entropy": "kernel:LinearCrossEntropy",
    "linear_cross_entropy_backward": "backward:LinearCrossEntropyBackward",
}
