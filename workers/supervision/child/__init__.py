"""The child side of supervised processes: fork server, reaper and worker, and their messages."""
