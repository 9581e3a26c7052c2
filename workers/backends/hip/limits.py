"""What AMD's documents say of GPUs: limits by architecture, ceilings by product."""

from __future__ import annotations

from workers.backend_spec import Peak

# LDS of one workgroup in KiB and vector registers (32-bit lanes) of one compute unit. AMD "CDNA 3"
# and "CDNA 4" ISA guides, "RDNA 3" ISA guide; ROCm "Accelerator and GPU hardware specifications".
_LDS_KIB_AND_REGISTERS = {
    "gfx90a": (64, 131_072), "gfx942": (64, 131_072), "gfx950": (160, 131_072),
    "gfx1030": (64, 65_536), "gfx1100": (64, 98_304), "gfx1101": (64, 98_304),
    "gfx1102": (64, 65_536), "gfx1150": (64, 65_536), "gfx1151": (64, 98_304),
    "gfx1200": (64, 98_304), "gfx1201": (64, 98_304),
}  # fmt: skip


def _threads_of_warp(architecture: str) -> int:
    return 64 if architecture.startswith("gfx9") else 32


#: Shared memory of one block in bytes, registers of one compute unit, threads of a warp.
BY_ARCHITECTURE = {
    name: (kib * 1024, registers, _threads_of_warp(name))
    for name, (kib, registers) in _LDS_KIB_AND_REGISTERS.items()
}
#: The limits of an architecture that is not listed.
USUAL = (64 * 1024, 65_536, 32)

#: Ceilings by a word of the exact name. Source: the data sheet of the product.
PEAKS = {"MI300X": Peak(5300, 1307.4, 2614.9, 653.7, 163.4)}
