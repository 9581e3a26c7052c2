"""Which functions of the clocks and the harness a variant has replaced.

A variant runs inside the measuring process, so this is not a security boundary. It names what a
careless or too clever variant does to its own measurement.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from itertools import repeat
from operator import is_
from typing import Any

_OURS = ("workers.measure.", "tuner.base.statistics")
_TIME = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")
_TORCH = ("sub", "stack", "empty", "Tensor")
_CUDA = ("Event", "CUDAGraph", "Stream", "synchronize", "current_stream", "stream", "graph")
_EVENT = ("elapsed_time", "record", "synchronize", "query", "wait")
_TENSOR = ("copy_", "fill_", "to", "tolist", "any", "view")
_ABSENT = object()


class HarnessSnapshot:
    """The functions of the clocks and the harness at the time the snapshot is made.

    It covers the clocks of `time`, torch's events, graphs and synchronisation, the tensor
    operations that comparisons use, and everything callable in the loaded modules of
    `workers.measure`. Make it before the first kernel's module is loaded.
    """

    def __init__(self) -> None:
        # Several hundred names are compared many times for every variant, so lookups are prepared.
        parts: dict[int, tuple[Any, Callable[..., Any], list[str], list[Any]]] = {}
        for owner, name in _covered_names():
            look_up = vars(owner).get
            _, _, names, originals = parts.setdefault(id(owner), (owner, look_up, [], []))
            names.append(name)
            originals.append(look_up(name, _ABSENT))
        self._parts = list(parts.values())

    def restore(self) -> str:
        """Restore all replaced functions; the name of the first, such as
        `torch.cuda.Event.elapsed_time`, or empty where none was replaced."""
        if all(
            all(map(is_, map(look_up, names, repeat(_ABSENT)), originals))
            for _, look_up, names, originals in self._parts
        ):
            return ""
        first = ""
        for owner, look_up, names, originals in self._parts:
            for name, original in zip(names, originals, strict=True):
                if look_up(name, _ABSENT) is not original:
                    first = first or f"{_title(owner)}.{name}"
                    _restore(owner, name, original)
        return first


def _covered_names() -> list[tuple[Any, str]]:
    import torch

    names: list[tuple[Any, str]] = [(time, name) for name in _TIME]
    names += [(torch, name) for name in _TORCH] + [(torch.Tensor, name) for name in _TENSOR]
    names += [(torch.cuda, name) for name in _CUDA]
    names += [(torch.cuda.Event, name) for name in _EVENT]
    names += [(torch.cuda.CUDAGraph, "replay"), (torch.linalg, "vector_norm")]
    names += [(threading, "Thread"), (sys, "_current_frames")]
    for title, module in list(sys.modules.items()):
        if not title.startswith(_OURS):
            continue
        for name, value in vars(module).items():
            if callable(value) or value is time:
                names.append((module, name))
            if isinstance(value, type) and value.__module__ == title:
                names += [(value, each) for each, item in vars(value).items() if callable(item)]
    return names


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def _title(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(owner.__name__)
