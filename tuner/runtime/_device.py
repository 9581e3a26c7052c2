"""The device and the package versions of this process. Nothing is loaded to find them."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from ._device_facts import DeviceFacts

#: In place of a device's name: the present device and, where it has no table, its siblings.
NEAREST = "nearest"


def current_device(index: int | None = None) -> DeviceFacts | None:
    """The current device of torch; None when torch is not loaded or finds no device.

    The environment variable TUNER_DEVICE overrides it by name: for a card that uses the table of
    another model, or for a test on a machine without the card. `nearest` is no name.
    """
    name = os.environ.get("TUNER_DEVICE")
    if name and name != NEAREST:
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


def takes_siblings() -> bool:
    """Whether this process uses the tables of sibling cards where it has none of its own card."""
    return os.environ.get("TUNER_DEVICE") == NEAREST


def several_models() -> bool:
    """Whether this process sees cards of different models, so that the device can change."""
    torch = sys.modules.get("torch")
    named = os.environ.get("TUNER_DEVICE") not in (None, "", NEAREST)
    if torch is None or named or not torch.cuda.is_available():
        return False
    return len({current_device(i) for i in range(torch.cuda.device_count())}) > 1


def version(package: str) -> str:
    """The version of a loaded or installed package; empty for a missing package."""
    module = sys.modules.get(package)
    found = getattr(module, "__version__", None)
    return str(found) if found else _read_version(package)


@lru_cache
def _read_version(package: str) -> str:
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
