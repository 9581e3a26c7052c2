"""How one run is timed: one module per method, their choice and their calibration.

`timer` has the roles. On a GPU, `events`, `graph` and `cupti` are the methods of these names on the
base class in `gpu_timer`; on a CPU, `perf_counter`. `methods` chooses one, `calibration` measures
their overhead and resolution, `slots` orders timed runs and `warm_up` brings clocks up.
"""
