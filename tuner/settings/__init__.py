"""Reading config.yaml: overrides over environment over file over defaults, all of it checked."""

from __future__ import annotations

from tuner.settings.models import ConfigError
from tuner.settings.sources import CONFIG_NAME, anchored, load, validated

__all__ = ["CONFIG_NAME", "ConfigError", "anchored", "load", "validated"]
