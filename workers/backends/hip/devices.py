"""HIP devices: found by a child process that asks torch, detected through torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from search_spaces.records import Device
from workers.backend_spec import Peak
from workers.backends.gpu.properties import torch_properties

# -- what AMD's documents say of GPUs: limits by architecture, ceilings by product -----------------
# LDS of one workgroup in KiB and vector registers (32-bit lanes) of one compute unit. AMD "CDNA 3"
# and "CDNA 4" ISA guides, "RDNA 3" ISA guide; ROCm "Accelerator and GPU hardware specifications".
_LDS_KIB_AND_REGISTERS = {
    "gfx90a": (64, 131_072), "gfx942": (64, 131_072), "gfx950": (160, 131_072),
    "gfx1030": (64, 65_536), "gfx1100": (64, 98_304), "gfx1101": (64, 98_304),
    "gfx1102": (64, 65_536), "gfx1150": (64, 65_536), "gfx1151": (64, 98_304),
    "gfx1200": (64, 98_304), "gfx1201": (64, 98_304),
}  # fmt: skip
#: Shared memory of one block in bytes, registers of one compute unit, threads of a warp.
BY_ARCHITECTURE = {
    name: (kib * 1024, registers, 64 if name.startswith("gfx9") else 32)
    for name, (kib, registers) in _LDS_KIB_AND_REGISTERS.items()
}
#: The limits of an architecture that is not listed.
USUAL = (64 * 1024, 65_536, 32)

#: Ceilings by a word of the exact name. Source: the data sheet of the product.
PEAKS = {"MI300X": Peak(5300, 1307.4, 2614.9, 653.7, 163.4)}


# -- HIP devices -----------------------------------------------------------------------------------
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
    shared_bytes, registers, _ = BY_ARCHITECTURE.get(arch, USUAL)
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
