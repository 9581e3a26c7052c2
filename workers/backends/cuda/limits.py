"""What NVIDIA's documents say of GPUs: limits by compute capability, ceilings by product."""

from __future__ import annotations

from workers.backend_spec import Peak

#: Registers of one multiprocessor; the same for all listed capabilities.
REGISTERS = 65_536
# Opt-in shared memory of one block. CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability".
_SHARED_KIB = {
    "70": 96, "75": 64, "80": 163, "86": 99, "87": 163, "89": 99,
    "90": 227, "100": 227, "103": 227, "110": 227, "120": 99, "121": 99,
}  # fmt: skip
#: Shared memory of one block in bytes, registers of one multiprocessor, threads of a warp.
BY_CAPABILITY = {name: (kib * 1024, REGISTERS, 32) for name, kib in _SHARED_KIB.items()}
#: Shared memory that every capability has without opt-in, bytes.
USUAL_SHARED_BYTES = 48 * 1024
#: Arithmetic units of one multiprocessor, where they are not `USUAL_CORES`. NVML counts units.
CORES_PER_SM = {"75": 64, "70": 64, "80": 64}
USUAL_CORES = 128


def shared_bytes(capability: str) -> int:
    """Opt-in shared memory of one block, bytes."""
    return BY_CAPABILITY.get(capability, (USUAL_SHARED_BYTES, 0, 0))[0]


#: Ceilings by words of the exact name; the first entry whose words all occur. Sources: the data
#: sheets of the products.
PEAKS: tuple[tuple[tuple[str, ...], Peak], ...] = (
    (("H200",), Peak(4800, 989.4, 1978.9, 494.7, 66.9)),
    (("H100", "NVL"), Peak(3900, 835.5, 1670.9, 417.7, 60.3)),
    (("H100", "PCIe"), Peak(2039, 756.4, 1512.9, 378.2, 51.2)),
    (("H100",), Peak(3350, 989.4, 1978.9, 494.7, 66.9)),
    (("A100", "40GB"), Peak(1555, 312.0, 624.0, 156.0, 19.5)),
    (("A100", "80GB PCIe"), Peak(1935, 312.0, 624.0, 156.0, 19.5)),
    (("A100",), Peak(2039, 312.0, 624.0, 156.0, 19.5)),
    (("B200",), Peak(8000, 2250.0, 4500.0, 1125.0, 75.0)),
    (("L40S",), Peak(864, 362.1, 733.0, 183.2, 91.6)),
)
