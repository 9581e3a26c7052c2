"""Supervised child processes: start, heartbeat, standby, end, and the attribution of faults."""
