"""Features of tiled GPU kernels, on which times depend more smoothly than on parameters.

The model of a search gets them in addition to the parameters. They are estimates from sizes,
before a build, and serve no other purpose.
"""

from __future__ import annotations

import math

from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Device

#: Shared memory in bytes, 32-bit registers and multiprocessors of a device that does not say.
_SHARED, _REGISTERS, _PROCESSORS = 227 * 1024, 65536, 128
#: Registers of a thread besides its sums, and the most it may have.
_OTHER_REGISTERS, _MOST_REGISTERS = 40, 255


def tile_features(
    device: Device, *, shared_bytes: int, sums: int, warps: int, programs: int
) -> tuple[float, ...]:
    """Four features of a launch: log2 of a program's shared memory, of its sums per thread and of
    the programs per multiprocessor, and the mean fill of the launch's waves.

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


def product_tile_features(
    config: Config, device: Device, *, rows: int, cols: int, stage_bytes: int, programs: int
) -> tuple[float, ...]:
    """The features of a launch of rows x cols tiles of a product, and log2 of the products per
    operand element that a tile loads.

    stage_bytes: shared memory of one of the config's stages. programs: of the launch.
    """
    launch = tile_features(
        device,
        shared_bytes=stage_bytes * integer(config, "num_stages"),
        sums=rows * cols,
        warps=integer(config, "num_warps"),
        programs=programs,
    )
    return *launch, math.log2(rows * cols / (rows + cols))
