"""Acceptance tests of the measurement; `gpu.py` and `cpu.py` run the modules of this folder."""
