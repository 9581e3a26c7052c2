"""What CUDA and HIP devices have in common: Triton variants on a GPU that torch knows."""
