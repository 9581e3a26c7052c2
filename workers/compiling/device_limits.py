"""The limits of a device that a built variant may exceed."""

from __future__ import annotations

from search_spaces.records import Device
from workers.job_records import StaticFacts

_MAX_THREADS = 1024
#: Registers are allocated to threads in multiples of this number.
_REGISTER_STEP = 8


def refusal(facts: StaticFacts, device: Device) -> str | None:
    """The limit that a launch with these facts exceeds, as a one-line message; None when it fits.

    Limits that the device's record does not state (0) are not checked.
    """
    threads = facts.num_warps * device.warp_size
    if 0 < device.shared_bytes < facts.shared_bytes:
        return (
            f"shared memory {facts.shared_bytes:,} B over the {device.shared_bytes:,} B "
            f"a block may use on {device.target}"
        )
    if threads > _MAX_THREADS:
        return f"{threads:,} threads over the {_MAX_THREADS:,} of a block on {device.target}"
    allocated = -(-facts.registers // _REGISTER_STEP) * _REGISTER_STEP
    if 0 < device.registers < allocated * threads:
        return (
            f"{allocated} registers x {threads:,} threads over the {device.registers:,} registers "
            f"of {device.target}"
        )
    return None
