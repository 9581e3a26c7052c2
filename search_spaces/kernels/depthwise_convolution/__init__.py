"""2-D depthwise convolution of images whose channels are neighbours in memory."""

KERNELS = {"depthwise_convolution": "kernel:DepthwiseConvolution"}
