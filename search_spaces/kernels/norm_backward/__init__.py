"""The backward pass of layer norm and RMS norm."""

KERNELS = {"norm_backward": "kernel:NormBackward"}
