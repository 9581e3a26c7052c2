"""Row softmax."""

KERNELS = {"softmax": "kernel:Softmax"}
