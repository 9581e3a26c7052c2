"""The correctness gate: a variant is timed only after it has passed all of it.

`checks` runs the gate, `comparison` compares outputs with references, `buffers` has guard bands and
poison, `harness_snapshot` finds changed functions of the harness, `run_observer` finds other side
effects and times the gate's runs, and `timed_run_check` repeats the comparison for one timed run.
"""
