"""Search spaces from kernels that exist already, such as those under triton.autotune."""
