"""Its folder is on the PYTHONPATH of the programs that `tuner capture` runs."""
