"""Reading config.yaml: overrides over environment over file over defaults, all of it checked."""

from __future__ import annotations

from tuner.settings._load import CONFIG_NAME, anchored, load, validated
from tuner.settings.models import ConfigError

__all__ = ["CONFIG_NAME", "ConfigError", "anchored", "load", "validated"]
