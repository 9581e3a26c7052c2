"""A config as the page shows it: what differs from the default, in full, and to paste."""

from __future__ import annotations

from dataclasses import dataclass

from reports.quantity import pairs
from results_db.config_text import describe_changes, format_triton_config
from results_db.stored_records import TaskInfo
from search_spaces.records import Config, canonical_json


@dataclass(frozen=True, slots=True)
class ConfigView:
    """The texts of one config."""

    #: What differs from the default config, one text per parameter; empty without a default.
    changes: list[str]
    #: Whether it is the default config.
    default: bool
    full: str
    #: (name, text) of each form to paste.
    forms: list[tuple[str, str]]


def view_config(task: TaskInfo, config: Config | None) -> ConfigView | None:
    """The texts of a task's config; None without one."""
    if config is None:
        return None
    default = task.selection.default if task.selection else None
    changes = [] if default is None else describe_changes(config, default)
    forms = [("JSON", canonical_json(dict(config)))]
    if task.key.toolchain.triton:
        forms.append(("triton.Config", format_triton_config(config)))
    return ConfigView(changes, default is not None and not changes, pairs(config), forms)
