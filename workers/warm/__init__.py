"""Workers that are warm at once: they fork from processes which have their libraries loaded.

`preload` says what builders, runners and standbys of a kind load, `fork_server` and
`server_process` are the two sides of a process that loads it, `pool_servers` holds those of one
pool, also before there is a pool, and `standby` keeps a second child that has opened its device.
"""
