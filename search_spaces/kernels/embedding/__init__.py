"""Rows of a table, gathered by their numbers."""

KERNELS = {"embedding": "kernel:Embedding"}
