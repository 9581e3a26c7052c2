"""Element-wise chains on a CPU, compiled by Inductor."""
