"""Dynamic quantisation to fp8 and int8, its inverse, and largest magnitudes."""

KERNELS = {
    "amax": "amax:Amax",
    "dequantise": "dequantise:Dequantise",
    "quantise": "kernel:Quantise",
}
