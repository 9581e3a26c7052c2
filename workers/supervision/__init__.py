"""Supervised processes: code that may crash, hang or be killed runs in a child, never in the farm.

    driver or actor
      |
      |  SupervisedChild                supervised_child.py, child_process.py
      |    writes requests, reads heartbeats and replies, closes the lifeline
      |
      +--starts--> fork server          fork_server.py | child/fork_server_main.py
                     |                  imports the libraries, runs no job, outlives its children
                     |
                     +--forks--> branch               a fork server with more libraries
                     |
                     +--forks--> reaper               child/reaper.py
                                   |                  kills and cleans up, runs no code of a job
                                   |
                                   +--forks--> worker           child/worker_loop.py
                                                 |              the caller's object
                                                 +--starts--> compilers and other helpers

    event                               reaction
    ----------------------------------  ------------------------------------------------------------
    a request takes too long            the driver closes the lifeline; the reaper kills the worker
                                        and all its descendants, and removes the scratch folder
    the worker ends or crashes          the reaper kills the descendants, removes the folder and
                                        writes the exit status, which becomes `ChildDied`
    the driver ends, also by kill -9    the lifeline closes by itself; as for a timeout
    the reaper is killed                the kernel kills the worker (PR_SET_PDEATHSIG), the fork
                                        server kills the rest of its session
    the child is suspended              the worker and its helpers, a process group without the
                                        reaper, are stopped; time limits stand still
    the fork server is killed           the kernel kills its branches; reapers and workers live on,
                                        and the next child gets a new server

A child has its own fork server, or shares one with others, and a folder with it
(`process_folders`).
`workers.pools.worker_servers` makes the servers that all workers of a local pool share.

What follows a lost process is decided here too: a crash is retried once in a fresh process
(`crash_retry`), a standby process takes over (`standby`), the candidate at fault is found
(`fault_attribution`), and faults of the machine are no candidate's (`machine_faults`).

The package imports `workers.job_records` and `search_spaces` alone; builders, runners and pools
import it.
"""
