"""Few rows times a weight matrix, as decoding needs them."""

KERNELS = {"gemv": "kernel:Gemv"}
