"""Rows added to the rows of a table by their numbers."""

KERNELS = {"index_add": "kernel:IndexAdd"}
