"""The radial basis function (Gaussian) kernel of two sets of points."""

KERNELS = {"rbf_kernel": "kernel:RbfKernel"}
