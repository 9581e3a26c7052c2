"""Softmax and log-softmax of rows of any length, also masked."""

KERNELS = {"online_softmax": "kernel:OnlineSoftmax"}
