"""Builders and runners: they compile, verify and measure variants in supervised processes."""

from __future__ import annotations

from tuner.base.import_names import lazy_names

# Names the module of a user that has this import name.
__getattr__ = lazy_names(__name__, {})
