"""2-D convolution of images whose channels are neighbours in memory."""

KERNELS = {"convolution": "kernel:Convolution"}
