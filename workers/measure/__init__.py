"""Measuring on one device: correctness gate, timers, race and the session that runs a job.

`session` runs a job through `gate` (correctness), `timers` (how one run is timed) and `race` (how
often each candidate is timed). `session_backend` is what it needs of a backend; `torch_backend` is
the base of those on torch, with `task_tensors` (inputs, references, buffers) and `triton_launch`.
`monitor` samples clocks and power, `roofline` bounds times from below, and `device_runner` is the
parent process of it all.
"""
