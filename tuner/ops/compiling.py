"""When calls may compile kernels, and `warm`, which compiles them ahead of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from tuner.runtime import compile_mode

_warming = threading.local()


def warm(call: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
    """Call a model or a function once, so that later calls compile nothing.

    Shapes, dtypes, strides and alignments are as in later calls; each kind needs a call of its own.
    With `TUNER_COMPILE=warm` nothing else compiles: a call whose kernel is missing runs on
    torch. A CUDA graph can be captured afterwards.
    """
    before = getattr(_warming, "on", False)
    _warming.on = True
    try:
        call(*arguments, **keywords)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    finally:
        _warming.on = before


def refuse() -> str:
    """Why a call may not compile now; empty where it may."""
    if compile_mode() == "warm" and not getattr(_warming, "on", False):
        return "TUNER_COMPILE=warm, and the call is outside of ops.warm"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured, in which nothing can be compiled: call ops.warm before"
    return ""
