"""Several element-wise operations in one kernel, with broadcast rows and columns."""

KERNELS = {"elementwise_chain": "kernel:ElementwiseChain"}
