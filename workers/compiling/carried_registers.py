"""The registers that the loops of a kernel need at least, read from its TTGIR before ptxas runs.

What a loop carries from one turn to the next lives in registers, or is spilled. On an H200, ptxas
took 38 to 44 % of the build time of four spaces of matmul for 258 of their 1,686 configs, which
carry more than there are. The best of these took 3 times as long as the winner.
"""

from __future__ import annotations

import math
import re

from search_spaces.records import Device

#: The most that a thread of an NVIDIA GPU can have.
_MOST = 255
_BITS = 32
_ATTRIBUTE = re.compile(r'"ttg\.(num-ctas|num-warps|threads-per-warp)" = (\d+)')
_LOOP = re.compile(r"\bscf\.for\b.* -> \((.*)\)")
#: Shape and width of a tensor of floats. A kernel may compute pointers and integers again.
_FLOATS = re.compile(r"tensor<((?:\d+x)+)b?f(\d+)")


def least_spill(ttgir: str, device: Device) -> int:
    """Bytes of floats that a loop carries beyond the registers of a thread; 0 where they fit.

    An element has at least one owner among the threads, whatever the layout. Kernels whose warps
    have roles of their own are not looked at, nor those for other than NVIDIA GPUs.
    """
    if device.kind != "cuda" or "ttg.warp_specialize" in ttgir:
        return 0
    sizes = {name: int(size) for name, size in _ATTRIBUTE.findall(ttgir)}
    block = sizes.get("num-warps", 0) * sizes.get("threads-per-warp", 0)
    if not block:
        return 0
    threads = block * sizes.get("num-ctas", 1)
    most = min(_MOST, device.registers // block) if device.registers else _MOST
    carried = max((_count_bits(found[1]) for found in _LOOP.finditer(ttgir)), default=0)
    return 4 * max(0, math.ceil(carried / _BITS / threads) - most)


def _count_bits(types: str) -> int:
    """The bits of the tensors of floats among these types."""
    return sum(
        math.prod(int(side) for side in shape.split("x") if side) * int(bits)
        for shape, bits in _FLOATS.findall(types)
    )
