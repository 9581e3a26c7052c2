"""A small kernel library: one operation, its Triton kernel, and tables of its best configs."""

from kernel_library.rmsnorm import rms_norm

__all__ = ["rms_norm"]
