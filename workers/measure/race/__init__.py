"""Paired comparison of candidates: order, statistics and elimination rules."""
