"""Dynamic quantization to fp8 and int8, its inverse, and largest magnitudes."""

KERNELS = {
    "amax": "amax:Amax",
    "dequantize": "dequantize:Dequantize",
    "quantize": "kernel:Quantize",
}
