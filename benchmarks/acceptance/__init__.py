"""Acceptance tests of measuring, one module per group; `benchmarks/acceptance_gpu.py` runs them."""
