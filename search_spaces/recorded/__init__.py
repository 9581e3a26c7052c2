"""Recorded spaces: measured configs that a simulated device replays."""
