"""Supervised processes: code that may crash, hang or be killed runs in a child, never in the farm.

`supervised_child` and `child_process` are the parent's side of one child, `child` is its own: the
worker, and the reaper that kills and cleans up after it. Both fork from a server of
`workers.warm`. docs/pools.md draws the processes, and says what follows the end of each.

What follows a lost process is decided here too: a crash is retried once in a fresh process
(`crash_retry`), the candidate at fault is found (`fault_attribution`), and faults of the machine
are no candidate's (`machine_faults`).

The package imports `workers.job_records` and `search_spaces` alone.
"""
