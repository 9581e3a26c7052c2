"""How often each candidate is timed, and when sampling stops.

`screening` drops slow candidates of a search, `elimination` finds the fastest of the finalists, and
`confirmation` takes the samples that are reported. `modes` chooses among them by the mode of a job.
`interleaving` orders the runs of a pass. The estimates and intervals are those of
`tuner.base.statistics`.
"""
