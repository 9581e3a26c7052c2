"""Settings from config.yaml, the environment and the command line, validated."""

from __future__ import annotations

from tuner.settings.sections import ConfigError
from tuner.settings.sources import CONFIG_NAME, anchor, load, validate

__all__ = ["CONFIG_NAME", "ConfigError", "anchor", "load", "validate"]
