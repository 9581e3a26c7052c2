"""Which built variants a target cannot run at all, and why."""

from __future__ import annotations

from search_spaces.records import Device
from workers.records import StaticFacts

_MAX_THREADS = 1024
#: registers are handed out to threads in multiples of this many.
_REGISTER_STEP = 8


def refusal(facts: StaticFacts, device: Device) -> str | None:
    """One line naming the limit that a launch of these facts exceeds; None when it fits.

    Limits the device does not state (0) are not checked.
    """
    threads = facts.num_warps * device.warp_size
    if 0 < device.shared_bytes < facts.shared_bytes:
        return (
            f"shared memory {facts.shared_bytes:,} B over the {device.shared_bytes:,} B "
            f"a block may use on {device.target}"
        )
    if threads > _MAX_THREADS:
        return f"{threads:,} threads over the {_MAX_THREADS:,} of a block on {device.target}"
    granted = -(-facts.registers // _REGISTER_STEP) * _REGISTER_STEP
    if 0 < device.registers < granted * threads:
        return (
            f"{granted} registers x {threads:,} threads over the {device.registers:,} registers "
            f"of {device.target}"
        )
    return None
