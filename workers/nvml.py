"""NVML, the interface of NVIDIA's driver that needs no CUDA context."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def opened_nvml() -> Iterator[Any]:
    """The module `pynvml`, initialised inside the block; None where there is no driver."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()
