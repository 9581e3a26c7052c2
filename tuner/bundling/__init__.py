"""`tuner bundle`: tables and compiled kernels in one folder, for machines that compile nothing.

- `bundle_sources.py`: which configs of which workloads, from tables, captured calls, records of
  programs and declarations of kernels; `range_sizes.py`: at which sizes of a range.
- `building.py`: compiles them in child processes, without a GPU.
- `writing.py`: the folder; `tuner/runtime/_bundle.py` loads it.
"""
