"""Acceptance tests of measuring, one module per group; `benchmarks/acceptance/gpu.py` runs them."""
