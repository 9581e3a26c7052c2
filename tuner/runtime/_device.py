"""Which device and which versions this process runs on, without loading anything for it."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from ._table import DeviceFacts


def current_device(index: int | None = None) -> DeviceFacts | None:
    """The device launches go to, or None when torch is not loaded or sees none.

    The environment variable TUNER_DEVICE overrides it by name: a card that should use another's
    table, or a test on a machine without the card.
    """
    if name := os.environ.get("TUNER_DEVICE"):
        return DeviceFacts(name)
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        if torch.cuda.is_available():
            return _cuda(torch, torch.cuda.current_device() if index is None else index)
        if hasattr(torch, "xpu") and torch.xpu.is_available():
            index = torch.xpu.current_device() if index is None else index
            return DeviceFacts(torch.xpu.get_device_name(index), kind="xpu")
    except (RuntimeError, AssertionError, AttributeError):
        return None
    return None


def several_kinds() -> bool:
    """Whether this process sees cards of different models, so that a launch must ask each time."""
    torch = sys.modules.get("torch")
    if torch is None or os.environ.get("TUNER_DEVICE") or not torch.cuda.is_available():
        return False
    return len({current_device(i) for i in range(torch.cuda.device_count())}) > 1


def version(package: str) -> str:
    """The version of a package in this process, loaded or installed; empty when there is none."""
    module = sys.modules.get(package)
    found = getattr(module, "__version__", None)
    return str(found) if found else _installed(package)


@lru_cache
def _installed(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cuda(torch: Any, index: int) -> DeviceFacts:
    facts = torch.cuda.get_device_properties(index)
    if getattr(torch.version, "hip", None):
        kind, target = "hip", f"hip:{facts.gcnArchName.split(':')[0]}"
    else:
        kind, target = "cuda", f"cuda:{facts.major}{facts.minor}"
    return DeviceFacts(
        facts.name, kind, target, facts.multi_processor_count, int(facts.total_memory)
    )
