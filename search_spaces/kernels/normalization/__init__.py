"""Layer norm and RMS norm over rows."""

KERNELS = {"layer_norm": "kernel:LayerNorm", "rms_norm": "kernel:RmsNorm"}
