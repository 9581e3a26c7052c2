"""Gradients of attention."""

KERNELS = {"attention_backward": "kernel:AttentionBackward"}
