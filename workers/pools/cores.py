"""Which processor each GPU is launched from, and which are left for compilers and everything else.

A launch takes a few microseconds of one processor; a compiler beside it on the same physical core
shows in the times.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Kinds whose work is launched by a processor and done elsewhere.
LAUNCHED = ("cuda", "hip", "xpu")
_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "HIP_VISIBLE_DEVICES", "xpu": ""}


@dataclass(frozen=True, slots=True)
class Share:
    """Logical processors of one process. launch: the one that its launching thread keeps to, None
    for no such thing. others: those of all else in it, empty for whatever it is given."""

    launch: int | None = None
    others: frozenset[int] = frozenset()


def shares(
    numbers: Collection[int], usable: Collection[int] | None = None, root: Path = Path("/")
) -> tuple[Mapping[int, int], frozenset[int]]:
    """The launching processor by number of GPU, and the processors for everything else.

    GPU number i has the i-th physical core to itself, siblings included; only the logical
    processor, where nothing would be left otherwise; and nothing is set aside where still nothing
    would be left. usable: by default the process's affinity.
    """
    if usable is None:
        usable = affinity()
    cores = _physical(usable, root)
    if not numbers or max(numbers) >= len(cores):
        return {}, frozenset(usable)
    launch = {number: cores[number][0] for number in numbers}
    taken = {processor for number in numbers for processor in cores[number]}
    others = set(usable) - taken or set(usable) - set(launch.values())
    return (launch, frozenset(others)) if others else ({}, frozenset(usable))


def affinity() -> set[int]:
    """The processors this process may use; empty where the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def number(kind: str, index: int) -> int:
    """The machine's number of this process's GPU `index`, as far as the environment tells.

    Several processes with one GPU each must not all launch from the same core.
    """
    setting = os.environ.get(_VISIBLE.get(kind, "")) or ""
    names = [part.strip() for part in setting.split(",")]
    if index < len(names) and names[index].isdecimal():
        return int(names[index])
    return index


def _physical(usable: Collection[int], root: Path) -> Sequence[Sequence[int]]:
    """The usable logical processors by physical core, in the order of each one's first."""
    found: dict[tuple[str, str], list[int]] = {}
    for processor in sorted(usable):
        topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        try:
            package = (topology / "physical_package_id").read_text().strip()
            core = (topology / "core_id").read_text().strip()
        except OSError:
            package, core = "", f"{processor}"
        found.setdefault((package, core), []).append(processor)
    return list(found.values())
