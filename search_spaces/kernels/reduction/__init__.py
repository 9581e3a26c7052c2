"""Sums, means, extrema and their places along rows or columns."""
