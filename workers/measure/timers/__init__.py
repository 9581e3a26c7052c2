"""Timers, one per method, and their calibration."""
