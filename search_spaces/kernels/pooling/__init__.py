"""Largest values and means of windows of images."""
