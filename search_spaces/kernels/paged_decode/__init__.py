"""Attention of one query per sequence over a paged cache of keys and values."""

KERNELS = {"paged_decode": "kernel:PagedDecode"}
