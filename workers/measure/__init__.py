"""What a backend measures with: correctness gate, interleaved timing, statistics, monitor.

`statistics` and `screening` import neither torch nor triton.
"""
