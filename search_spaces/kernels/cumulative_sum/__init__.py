"""Cumulative sums of rows."""

KERNELS = {"cumulative_sum": "kernel:CumulativeSum"}
