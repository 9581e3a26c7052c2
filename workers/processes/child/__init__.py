"""The child side of supervised processes: reaper and worker, and their messages."""
