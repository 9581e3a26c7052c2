"""1-D causal depthwise convolution of sequences."""

KERNELS = {"causal_convolution": "kernel:CausalConvolution"}
