"""What a backend measures with: correctness gate, interleaved timing, statistics, monitor.

`statistics` and `duel` import neither torch nor triton.
"""
