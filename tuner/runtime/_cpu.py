"""The processor of this process, described by the facts that tables of CPU kernels contain."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

from ._device_facts import DeviceFacts

_CPUS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")


@lru_cache
def cpu_device() -> DeviceFacts:
    """This machine's processor: exact model name and the physical cores that it may use."""
    first = _text(Path("/proc/cpuinfo")).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    # Arm's cpuinfo has no model name; implementer and part number identify the core.
    parts = [facts[name] for name in ("CPU implementer", "CPU part") if name in facts]
    name = facts.get("model name") or " ".join([platform.machine(), *parts])
    return DeviceFacts(name, kind="cpu", sm_count=_cores())


def _cores() -> int:
    """Physical cores in the affinity mask, at most the quota of the control group."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    cores = set()
    for cpu in usable:
        topology = _CPUS / f"cpu{cpu}" / "topology"
        core = _text(topology / "core_id")
        cores.add((_text(topology / "physical_package_id"), core) if core else ("", str(cpu)))
    quota, _, period = _text(_GROUPS / "cpu.max").partition(" ")
    if not quota:
        quota = _text(_GROUPS / "cpu/cpu.cfs_quota_us")
        period = _text(_GROUPS / "cpu/cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(len(cores), int(quota) // int(period)))
    return max(1, len(cores))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
