"""Gradients of the functions of `activation`."""

KERNELS = {"activation_backward": "kernel:ActivationBackward"}
