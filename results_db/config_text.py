"""Configs as text: what differs from the default, and forms to paste."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from search_spaces.records import Config, Value, canonical_json

#: Arguments of `triton.Config` other than its kwargs.
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def split_triton_config(config: Mapping[str, Value]) -> dict[str, Any]:
    """The arguments of `triton.Config`: its kwargs, and its options by name."""
    options = {name: config[name] for name in _OPTIONS if name in config}
    kwargs = {name: value for name, value in config.items() if name not in _OPTIONS}
    return {"kwargs": kwargs, **options}


def format_triton_config(config: Mapping[str, Value]) -> str:
    """The config as Python writes it: `triton.Config({"BLOCK": 1024}, num_warps=8)`."""
    parts = split_triton_config(config)
    kwargs = ", ".join(
        f"{json.dumps(name)}: {_quote(v)}" for name, v in parts.pop("kwargs").items()
    )
    options = [f"{name}={value!r}" for name, value in parts.items()]
    return f"triton.Config({', '.join([f'{{{kwargs}}}', *options])})"


def _quote(value: Value) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def describe_changes(config: Config, before: Config) -> list[str]:
    """Each parameter that differs as `num_warps 4 → 8`; `—` stands for none."""
    names = sorted({*config, *before})
    both = [(name, _write(before, name), _write(config, name)) for name in names]
    return [f"{name} {old} → {new}" for name, old, new in both if old != new]


def _write(config: Config, name: str) -> str:
    """A value as its JSON, a text without its quotes."""
    if name not in config:
        return "—"
    value = config[name]
    return value if isinstance(value, str) else canonical_json(value)
