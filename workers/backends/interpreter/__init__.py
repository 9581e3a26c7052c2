"""Triton's interpreter: verifies variants on a machine without a GPU."""
