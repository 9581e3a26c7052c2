"""Layer norm and RMS norm over rows on a CPU."""

KERNELS = {"cpu_layer_norm": "kernel:CpuLayerNorm", "cpu_rms_norm": "kernel:CpuRmsNorm"}
KINDS = ("cpu",)
