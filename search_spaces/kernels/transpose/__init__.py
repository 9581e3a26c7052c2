"""Transposed matrices."""
