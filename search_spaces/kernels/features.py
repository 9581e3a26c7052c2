"""What times of tiled GPU kernels follow more smoothly than their parameters do.

A search's model is told these beside the parameters. They are estimates from sizes alone, before
anything is built: nothing else rests on them.
"""

from __future__ import annotations

import math

from search_spaces.records import Device

#: Where the device does not say: shared memory in bytes, 32-bit registers and processors of a GPU.
_SHARED, _REGISTERS, _PROCESSORS = 227 * 1024, 65536, 128
#: Registers of a thread beside its sums, and how many it may have.
_OTHER_REGISTERS, _MOST_REGISTERS = 40, 255


def tile_features(
    device: Device, *, shared_bytes: int, sums: int, warps: int, programs: int
) -> tuple[float, ...]:
    """Of a launch whose programs hold a tile of sums each: log2 of shared memory, of sums per
    thread and of programs per multiprocessor, and how full all its waves are on average.

    shared_bytes, sums (float32 accumulators), warps: of one program. programs: of the launch.
    """
    threads = warps * (device.warp_size or 32)
    held = sums / threads
    registers = threads * min(_MOST_REGISTERS, held + _OTHER_REGISTERS)
    fitting = min((device.shared_bytes or _SHARED) // max(1, shared_bytes), _REGISTERS // registers)
    resident = max(1, int(fitting))
    waves = programs / (resident * (device.sm_count or _PROCESSORS))
    return (
        math.log2(max(1, shared_bytes)),
        math.log2(held),
        math.log2(resident),
        waves / math.ceil(waves),
    )
