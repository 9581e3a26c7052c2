"""Layer norm and RMS norm of a sum with the residual stream."""

KERNELS = {"add_norm": "kernel:AddNorm"}
