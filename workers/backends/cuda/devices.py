"""CUDA devices: found through NVML, described by the driver, detected through torch.

`found` and `described` initialise no CUDA in this process; `detect` does.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import Device
from workers.backends.cuda import driver_facts, limits
from workers.backends.gpu.properties import torch_properties
from workers.nvml import opened_nvml

_TIMEOUT_S = 20.0

_log = logging.getLogger(__name__)


def detect(index: int) -> Device:
    """GPU number `index` of those visible to this process; initialises CUDA.

    Raises `TunerError` when there is none.
    """
    properties = torch_properties("cuda", index)
    return _device(
        {
            "name": properties.name,
            "major": properties.major,
            "minor": properties.minor,
            "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "shared_bytes": int(getattr(properties, "shared_memory_per_block_optin", 0)),
            "registers": getattr(properties, "regs_per_multiprocessor", limits.REGISTERS),
            "warp_size": getattr(properties, "warp_size", 32),
            "l2_bytes": getattr(properties, "L2_cache_size", 0),
            "uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "",
        }
    )


def describe_devices() -> list[Device]:
    """The GPUs visible to this process, as `detect` gives them; empty where there is no driver.

    A short-lived process asks the driver, so that CUDA is not initialised in this one.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", driver_facts.__file__],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return [_device(one) for one in json.loads(done.stdout)]
    except Exception as error:  # also NVML's, which has no common class with the others
        _log.info("the CUDA devices are not described before they are opened: %s", error)
        return []


def has_driver() -> bool:
    """Whether CUDA's driver has its node, on Linux or in Windows' subsystem for it."""
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg"))


def find_devices() -> list[Device]:
    """The GPUs visible to this process, in CUDA's order; empty where there is no driver."""
    with opened_nvml() as nvml:
        if nvml is None:
            return []
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        return [_nvml_device(nvml, handles[index], uuids[index]) for index in visible]


def visible_devices(setting: str | None, uuids: Sequence[str]) -> list[int]:
    """Indices of the devices that `CUDA_VISIBLE_DEVICES` leaves visible, in its order.

    As CUDA reads it: names are indices or beginnings of uuids, and the first name that is neither
    ends the list. setting: None when the variable is not set, so that all devices are visible.
    Raises `TunerError` where the first name is a part of a GPU, or a uuid of none.
    """
    if setting is None:
        return list(range(len(uuids)))
    visible: list[int] = []
    for name in (part.strip() for part in setting.split(",")):
        if name.isdecimal():
            matches = [int(name)] if int(name) < len(uuids) else []
        else:
            matches = [i for i, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        if len(matches) != 1 and not visible and name.startswith(("GPU-", "MIG-")):
            raise _make_error(setting, name, len(matches))
        if len(matches) != 1 or matches[0] in visible:
            break
        visible += matches
    return visible


def _make_error(setting: str, name: str, matches: int) -> TunerError:
    which = "no GPU here" if not matches else f"{matches} GPUs, whose UUIDs begin with it"
    if name.startswith("MIG-"):
        which = "a part of a GPU (MIG), which is not supported"
    return TunerError(
        f"CUDA_VISIBLE_DEVICES={setting}: {name} is {which}",
        "name whole GPUs by index or UUID, as `nvidia-smi -L` lists them",
    )


def _nvml_device(nvml: Any, handle: Any, uuid: str) -> Device:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    arch = f"{major}{minor}"
    try:
        cores_per_sm = limits.CORES_PER_SM.get(arch, limits.USUAL_CORES)
        sm_count = nvml.nvmlDeviceGetNumGpuCores(handle) // cores_per_sm
    except nvml.NVMLError:
        sm_count = 0
    return Device(
        kind="cuda",
        name=str(nvml.nvmlDeviceGetName(handle)),
        target=f"cuda:{arch}",
        sm_count=sm_count,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        shared_bytes=limits.shared_bytes(arch),
        registers=limits.REGISTERS,
        power_limit_w=_power_limit_w(nvml, handle),
        uuid=uuid,
    )


def _device(facts: Mapping[str, Any]) -> Device:
    """The device with these facts of CUDA, and what NVML alone knows of it."""
    arch, uuid = f"{facts['major']}{facts['minor']}", facts["uuid"]
    memory_bytes, power_limit_w = facts["memory_bytes"], 0.0
    with opened_nvml() as nvml:
        if nvml is not None and uuid:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            memory_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).total
            power_limit_w = _power_limit_w(nvml, handle)
    return Device(
        kind="cuda",
        name=facts["name"],
        target=f"cuda:{arch}",
        sm_count=facts["sm_count"],
        memory_bytes=memory_bytes,
        shared_bytes=facts["shared_bytes"] or limits.shared_bytes(arch),
        registers=facts["registers"],
        warp_size=facts["warp_size"],
        l2_bytes=facts["l2_bytes"],
        power_limit_w=power_limit_w,
        uuid=uuid,
    )


def _power_limit_w(nvml: Any, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    except nvml.NVMLError:
        return 0.0
