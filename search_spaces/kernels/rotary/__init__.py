"""Rotary position embedding of queries and keys."""

KERNELS = {"rotary": "kernel:Rotary"}
