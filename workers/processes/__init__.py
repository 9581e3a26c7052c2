"""Supervised processes: code that may crash, hang or be killed runs in a child, never in the farm.

`supervised_child` and `child_process` are the parent's side of one child, `child` is its own: the
worker, and the reaper that kills and cleans up after it. Both fork from a process that has their
libraries loaded, so that they are warm at once: `preload` says what builders, runners and standbys
of a kind load, `fork_server` and `server_process` are the two sides of a process that loads it,
`pool_servers` holds those of one pool, also before there is a pool, and `standby` keeps a second
child that has opened its device. docs/pools.md draws the processes, and says what follows the end
of each.

What follows a lost process is decided here too: a crash is retried once in a fresh process
(`crash_retry`), the candidate at fault is found (`fault_attribution`), and faults of the machine
are no candidate's (`machine_faults`).

Supervision imports `workers.job_records` and `search_spaces` alone.
"""
