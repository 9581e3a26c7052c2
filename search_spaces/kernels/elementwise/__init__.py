"""Sums, products, broadcasts and casts of independent elements."""
