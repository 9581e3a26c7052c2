"""Rows of a table, gathered by their numbers."""
