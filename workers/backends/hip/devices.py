"""HIP devices: found by a child process that asks torch, detected through torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from search_spaces.records import Device
from workers.backends.gpu.properties import torch_properties
from workers.backends.hip import limits

_TIMEOUT_S = 120
_SCRIPT = """
import json, torch
from dataclasses import asdict
from workers.backends.hip.devices import detect
count = torch.cuda.device_count() if torch.version.hip else 0
print(json.dumps([asdict(detect(index)) for index in range(count)]))
"""


def detect(index: int) -> Device:
    """GPU number `index` of those visible to this process; initialises HIP.

    Raises `TunerError` when there is none.
    """
    properties = torch_properties("hip", index)
    arch = str(properties.gcnArchName).partition(":")[0]
    shared_bytes, registers, _ = limits.BY_ARCHITECTURE.get(arch, limits.USUAL)
    return Device(
        kind="hip",
        name=properties.name,
        target=f"hip:{arch}",
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        shared_bytes=shared_bytes,
        registers=registers,
        warp_size=properties.warp_size,
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        uuid=str(getattr(properties, "uuid", "")),
    )


def has_driver() -> bool:
    """Whether HIP's driver has its node: the only sign of a device that needs no library."""
    return Path("/dev/kfd").exists()


def find_devices() -> list[Device]:
    """The GPUs visible to this process, in HIP's order; empty where there is no driver."""
    if not has_driver():
        return []
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    return [Device(**facts) for facts in json.loads(lines[-1])] if lines else []
