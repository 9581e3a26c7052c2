"""The backward pass of softmax and log-softmax."""

KERNELS = {"softmax_backward": "kernel:SoftmaxBackward"}
