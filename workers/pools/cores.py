"""Processors: one per GPU for the thread that launches, the rest for compilers and other threads.

A launch takes a few microseconds of one processor. A compiler on the same physical core lengthens
the measured times.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from workers import backend_kinds
from workers.host import affinity, group_by_core


def shares(
    numbers: Collection[int], usable: Collection[int] | None = None, root: Path = Path("/")
) -> tuple[Mapping[int, int], frozenset[int]]:
    """The launching processor of each GPU, by the GPU's number, and the processors for the rest.

    GPU number i gets the i-th physical core, siblings included. If that leaves no processor, it
    gets one logical processor; if that still leaves none, nothing is reserved. numbers: those of
    the GPUs. usable: by default the process's affinity. root: of the file system with `sys`.
    """
    if usable is None:
        usable = affinity()
    cores = group_by_core(usable, root)
    if not numbers or max(numbers) >= len(cores):
        return {}, frozenset(usable)
    launch = {number: cores[number][0] for number in numbers}
    taken = {processor for number in numbers for processor in cores[number]}
    others = set(usable) - taken or set(usable) - set(launch.values())
    return (launch, frozenset(others)) if others else ({}, frozenset(usable))


def number(kind: str, index: int) -> int:
    """The machine's number of this process's GPU `index`, by the environment if it names numbers.

    Several processes with one GPU each must launch from different cores.
    """
    setting = os.environ.get(backend_kinds.spec(kind).visible_devices) or ""
    names = [part.strip() for part in setting.split(",")]
    if index < len(names) and names[index].isdecimal():
        return int(names[index])
    return index
