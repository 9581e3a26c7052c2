"""Activation functions of independent elements, and gated ones of two halves of a row."""

KERNELS = {"activation": "kernel:Activation"}
