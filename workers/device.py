"""Devices: found without touching them, detected by the process that owns them, or known by name.

`found` is for processes that must not initialise CUDA (pools, command line), `detect` for the
child that owns the device, `offline` for targets nobody here has.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import Device
from workers.host import cpu_device

# Opt-in shared memory of one block in bytes, by compute capability. CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability". All have 65,536 registers per multiprocessor.
_CUDA_SHARED_KIB = {
    "70": 96, "75": 64, "80": 163, "86": 99, "87": 163, "89": 99,
    "90": 227, "100": 227, "103": 227, "110": 227, "120": 99, "121": 99,
}  # fmt: skip
_CUDA_REGISTERS = 65_536
# LDS of one workgroup in KiB and vector registers (32-bit lanes) of one compute unit. AMD "CDNA 3"
# and "CDNA 4" ISA guides, "RDNA 3" ISA guide; ROCm "Accelerator and GPU hardware specifications".
_HIP_LIMITS = {
    "gfx90a": (64, 131_072), "gfx942": (64, 131_072), "gfx950": (160, 131_072),
    "gfx1030": (64, 65_536), "gfx1100": (64, 98_304), "gfx1101": (64, 98_304),
    "gfx1102": (64, 65_536), "gfx1150": (64, 65_536), "gfx1151": (64, 98_304),
    "gfx1200": (64, 98_304), "gfx1201": (64, 98_304),
}  # fmt: skip
_USUAL_TARGET = {"cuda": "cuda:90", "hip": "hip:gfx942"}
_CORES_PER_SM = {"75": 64, "70": 64, "80": 64}


def offline(target: str, kind: str | None = None) -> Device:
    """The limits of a GPU target that nobody here owns; what is not a limit is 0.

    kind defaults to the target's own (`cuda`, `hip`); `interpreter` says that it is only verified.
    Raises `TunerError` naming the known targets.
    """
    backend, _, arch = target.partition(":")
    if backend == "cuda" and arch in _CUDA_SHARED_KIB:
        shared, registers, warp = _CUDA_SHARED_KIB[arch], _CUDA_REGISTERS, 32
    elif backend == "hip" and arch in _HIP_LIMITS:
        (shared, registers), warp = _HIP_LIMITS[arch], 64 if arch.startswith("gfx9") else 32
    else:
        known = [f"cuda:{name}" for name in _CUDA_SHARED_KIB]
        known += [f"hip:{name}" for name in _HIP_LIMITS]
        raise TunerError(f"unknown target {target!r}", f"known targets: {', '.join(known)}")
    return Device(
        kind=kind or backend,
        name=f"{target} (not present)",
        target=target,
        shared_bytes=shared * 1024,
        registers=registers,
        warp_size=warp,
    )


def assumed(targets: Sequence[str]) -> Device | None:
    """The GPU that targets such as `cuda` and `hip:gfx942` most likely mean: the first that is here
    or, where none is, the first by its limits. None without such targets."""
    for target in targets:
        kind, _, code = target.partition(":")
        if kind in _USUAL_TARGET:
            here = [one for one in found(kind) if not code or one.target == target]
            return here[0] if here else offline(target if code else _USUAL_TARGET[kind])
    return None


def detect(kind: str, index: int = 0) -> Device:
    """The device of that kind this process may use; for `cuda` and `hip`, initialises it.

    index counts the devices visible to this process. Raises `TunerError` when there is none.
    """
    detectors: dict[str, Callable[[int], Device]] = {
        "cpu": lambda _: cpu_device(),
        "cuda": _detect_cuda,
        "hip": _detect_hip,
        "interpreter": lambda _: _interpreter(),
    }
    if kind not in detectors:
        raise TunerError(
            f"no device detection for backend {kind!r}", f"known: {', '.join(detectors)}"
        )
    return detectors[kind](index)


def found(kind: str) -> list[Device]:
    """The devices of that kind visible to this process, in order, without initialising any."""
    if kind in ("cpu", "interpreter"):
        return [detect(kind)]
    if kind == "cuda":
        return _found_cuda()
    if kind == "hip":
        return _found_hip()
    return []


def _interpreter() -> Device:
    host = cpu_device()
    return Device(
        kind="interpreter",
        name=f"Triton interpreter on {host.name}",
        target="interpreter",
        sm_count=host.sm_count,
        memory_bytes=host.memory_bytes,
    )


# -- CUDA ------------------------------------------------------------------------------------------
def _detect_cuda(index: int) -> Device:
    properties = _torch_properties("cuda", index)
    arch = f"{properties.major}{properties.minor}"
    memory_bytes, power_limit_w = properties.total_memory, 0.0
    uuid = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else ""
    with _Nvml() as nvml:
        if nvml is not None and uuid:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            memory_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).total
            power_limit_w = _power_limit_w(nvml, handle)
    return Device(
        kind="cuda",
        name=properties.name,
        target=f"cuda:{arch}",
        sm_count=properties.multi_processor_count,
        memory_bytes=memory_bytes,
        shared_bytes=_shared_bytes(properties, arch),
        registers=getattr(properties, "regs_per_multiprocessor", _CUDA_REGISTERS),
        warp_size=getattr(properties, "warp_size", 32),
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        power_limit_w=power_limit_w,
        uuid=uuid,
    )


def _shared_bytes(properties: Any, arch: str) -> int:
    reported = int(getattr(properties, "shared_memory_per_block_optin", 0))
    return reported or _CUDA_SHARED_KIB.get(arch, 48) * 1024


def _found_cuda() -> list[Device]:
    with _Nvml() as nvml:
        if nvml is None:
            return []
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        return [_nvml_device(nvml, handles[index], uuids[index]) for index in visible]


def visible_devices(setting: str | None, uuids: list[str]) -> list[int]:
    """Indices of the devices that `CUDA_VISIBLE_DEVICES` leaves visible, in its order.

    As CUDA reads it: names are indices or beginnings of uuids, and the first one that is neither
    ends the list. None is no setting at all.
    """
    if setting is None:
        return list(range(len(uuids)))
    visible: list[int] = []
    for name in (part.strip() for part in setting.split(",")):
        if name.isdecimal():
            matches = [int(name)] if int(name) < len(uuids) else []
        else:
            matches = [i for i, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        if len(matches) != 1 or matches[0] in visible:
            break
        visible += matches
    return visible


def _nvml_device(nvml: Any, handle: Any, uuid: str) -> Device:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    arch = f"{major}{minor}"
    try:
        sm_count = nvml.nvmlDeviceGetNumGpuCores(handle) // _CORES_PER_SM.get(arch, 128)
    except nvml.NVMLError:
        sm_count = 0
    return Device(
        kind="cuda",
        name=str(nvml.nvmlDeviceGetName(handle)),
        target=f"cuda:{arch}",
        sm_count=sm_count,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        shared_bytes=_CUDA_SHARED_KIB.get(arch, 48) * 1024,
        registers=_CUDA_REGISTERS,
        power_limit_w=_power_limit_w(nvml, handle),
        uuid=uuid,
    )


def _power_limit_w(nvml: Any, handle: Any) -> float:
    try:
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    except nvml.NVMLError:
        return 0.0


class _Nvml:
    """`with _Nvml() as nvml`: the NVML module, or None where there is no NVIDIA driver."""

    def __enter__(self) -> Any:
        self._nvml: Any = importlib.import_module("pynvml")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            self._nvml = None
        return self._nvml

    def __exit__(self, *exception: object) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()


# -- HIP -------------------------------------------------------------------------------------------
def _detect_hip(index: int) -> Device:
    properties = _torch_properties("hip", index)
    arch = str(properties.gcnArchName).partition(":")[0]
    shared, registers = _HIP_LIMITS.get(arch, (64, 65_536))
    return Device(
        kind="hip",
        name=properties.name,
        target=f"hip:{arch}",
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        shared_bytes=shared * 1024,
        registers=registers,
        warp_size=properties.warp_size,
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        uuid=str(getattr(properties, "uuid", "")),
    )


def _found_hip() -> list[Device]:
    # Only the driver's node says without a library that there may be a device; a child asks torch.
    if not Path("/dev/kfd").exists():
        return []
    script = (
        "import json, torch; from dataclasses import asdict; from workers.device import detect\n"
        "count = torch.cuda.device_count() if torch.version.hip else 0\n"
        "print(json.dumps([asdict(detect('hip', index)) for index in range(count)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    lines = done.stdout.splitlines()
    return [Device(**facts) for facts in json.loads(lines[-1])] if lines else []


def _torch_properties(kind: str, index: int) -> Any:
    import torch

    built_for = "hip" if torch.version.hip else "cuda"
    count = torch.cuda.device_count() if built_for == kind else 0
    if index >= count:
        raise TunerError(
            f"no {kind} device {index}: {count} visible to this process",
            f"check the driver and that torch {torch.__version__} is a {kind} build",
        )
    return torch.cuda.get_device_properties(index)
