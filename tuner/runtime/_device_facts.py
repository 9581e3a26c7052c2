"""The facts that identify a device, and the rule by which a table's device matches this one."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: The device kind of replayed recordings. Their times were not measured on the device they name.
SIMULATED = "simulated"
#: Relative difference in memory size within one model: the driver reports memory that torch omits.
MEMORY_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as a table or the running process describes it. Empty or zero means unknown."""

    #: Exact name as the driver reports it.
    name: str
    #: Kind of the backend. `simulated` matches no other kind.
    kind: str = ""
    #: Target of the compiler, such as `cuda:90`.
    target: str = ""
    #: Multiprocessors of a GPU, physical cores of a CPU.
    sm_count: int = 0
    memory_bytes: int = 0
    shared_bytes: int = 0
    #: Provenance only: torch does not report it, so it is not compared.
    power_limit_w: float = 0.0
    #: Provenance only.
    fingerprint: str = ""

    def matches(self, other: DeviceFacts) -> bool:
        """Whether both describe the same device model, by every fact that both know."""
        if self.name != other.name:
            return False
        if (self.kind == SIMULATED) != (other.kind == SIMULATED):
            return False
        if self.target and other.target and self.target != other.target:
            return False
        if self.sm_count and other.sm_count and self.sm_count != other.sm_count:
            return False
        if self.memory_bytes and other.memory_bytes:
            gap = abs(self.memory_bytes - other.memory_bytes)
            return gap <= MEMORY_TOLERANCE * max(self.memory_bytes, other.memory_bytes)
        return True

    def distance_to_sibling(self, other: DeviceFacts) -> float:
        """How far a sibling is: |log2| of the ratio of multiprocessors; infinite for others.

        Siblings have the same kind and target: every binary and every config of one runs on the
        other. Memory, clocks and power limits may differ.
        """
        alike = (self.kind, self.target) == (other.kind, other.target) and self.target
        if not alike or SIMULATED in (self.kind, other.kind) or not other.sm_count:
            return math.inf
        return abs(math.log2(self.sm_count / other.sm_count)) if self.sm_count else math.inf
