"""The CPU of this machine as a device, limited to the share that this process may use."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from search_spaces.records import Device

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
_AVX2 = {"avx2", "fma"}


def cpu_device(root: Path = Path("/")) -> Device:
    """This machine's CPU: exact model name, usable physical cores, memory, last-level cache.

    root: the folder that contains `/proc` and `/sys`. The process's affinity and control group
    limit cores and memory.
    """
    facts = _cpuinfo(root)
    machine = platform.machine()
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    return Device(
        kind="cpu",
        name=_name(facts, machine),
        target=f"cpu:{_instructions(machine, flags)}",
        sm_count=physical_cores(root),
        memory_bytes=_memory_bytes(root),
        warp_size=1,
        l2_bytes=_last_cache_bytes(root),
    )


def physical_cores(root: Path = Path("/")) -> int:
    """Physical cores that this process may keep busy: those of its affinity, up to its quota."""
    cores = group_by_core(affinity() or {0}, root)
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        group = root / "sys/fs/cgroup/cpu"
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(len(cores), math.floor(int(quota) / int(period))))
    return max(1, len(cores))


def affinity() -> set[int]:
    """The processors this process may use; empty if the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def group_by_core(usable: Iterable[int], root: Path = Path("/")) -> list[list[int]]:
    """The usable logical processors by physical core, ordered by the first one of each core."""
    found: dict[tuple[str, str], list[int]] = {}
    for processor in sorted(usable):
        topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        package, core = (_text(topology / n) for n in ("physical_package_id", "core_id"))
        found.setdefault((package, core) if core else ("", f"{processor}"), []).append(processor)
    return list(found.values())


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's facts from `/proc/cpuinfo`."""
    first = _text(root / "proc/cpuinfo").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _name(facts: dict[str, str], machine: str) -> str:
    if "model name" in facts:
        return facts["model name"]
    # Arm's cpuinfo has no model name; implementer and part number identify the core.
    parts = [facts[key] for key in ("CPU implementer", "CPU part") if key in facts]
    return " ".join([machine, *parts]) or platform.processor() or "unknown CPU"


def _instructions(machine: str, flags: set[str]) -> str:
    if machine in ("x86_64", "AMD64"):
        if flags >= _AVX512:
            return "x86-64-avx512"
        return "x86-64-avx2" if flags >= _AVX2 else "x86-64"
    if machine in ("aarch64", "arm64"):
        best = next((name for name in ("sve2", "sve") if name in flags), "neon")
        return f"aarch64-{best}"
    return machine or "unknown"


def _memory_bytes(root: Path) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    sizes = [int(found.group(1)) * 1024] if found else []
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _text(root / "sys/fs/cgroup" / limit)
        if text.isdecimal():
            sizes.append(int(text))
    return min(sizes, default=0)


def _last_cache_bytes(root: Path) -> int:
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = _text(path)
        if text[:-1].isdecimal() and text[-1] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
