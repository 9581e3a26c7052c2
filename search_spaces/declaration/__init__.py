"""Checks of a kernel declaration before anything is built, and the source positions they report."""
