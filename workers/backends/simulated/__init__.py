"""Devices that replay recorded spaces."""
