"""What NVIDIA's driver says of the visible devices without a context; run as a short program.

    python -I -S workers/backends/cuda/driver_facts.py

Prints a JSON list with the facts of each device, in CUDA's order; an empty one where there is no
driver. `cuInit` takes memory of no device, but a process that has called it cannot be forked, so
the program does nothing else. Standard library only. Names and numbers are those of `cuda.h`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

#: `CUdevice_attribute` by the name of the fact.
ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "sm_count": 16,
    "shared_bytes": 97,
    "registers": 82,
    "warp_size": 10,
    "l2_bytes": 38,
}
_NAME_BYTES = 256


def facts(library: str = "libcuda.so.1") -> list[dict[str, Any]]:
    """The facts of the visible devices: `ATTRIBUTES`, `name`, `memory_bytes` and `uuid`."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_facts_of(cuda, index) for index in range(count.value)]


def _facts_of(cuda: Any, index: int) -> dict[str, Any]:
    device, value, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, identity = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(16)
    _check(cuda.cuDeviceGet(ctypes.byref(device), index))
    _check(cuda.cuDeviceGetName(name, _NAME_BYTES, device))
    _check(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device))
    _check(cuda.cuDeviceGetUuid(identity, device))
    found: dict[str, Any] = {
        "name": name.value.decode(),
        "memory_bytes": size.value,
        "uuid": f"GPU-{uuid.UUID(bytes=identity.raw)}",
    }
    for fact, attribute in ATTRIBUTES.items():
        _check(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        found[fact] = value.value
    return found


def _check(status: int) -> None:
    if status:
        raise OSError(f"the CUDA driver answers with error {status}")


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
