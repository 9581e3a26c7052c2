"""Dialects in which a family offers the same operation: Triton, and Gluon for Hopper.

Gluon (`triton.experimental.gluon`) leaves layouts, copies, barriers and the division of work among
warps to the kernel. It is experimental, and its names change between versions of Triton.
"""

from __future__ import annotations

from collections.abc import Callable

from search_spaces import triton_versions
from search_spaces.constraints import Constraint
from search_spaces.records import Config, Device, Workload

TRITON, GLUON = "triton", "gluon"
DIALECTS = (TRITON, GLUON)
#: wgmma and TMA as the kernels use them; later architectures multiply in tensor memory.
_HOPPER = "cuda:90"
_OLDEST, _NEWEST = map(
    triton_versions.format_version, (triton_versions.OLDEST, triton_versions.NEWEST)
)


def gluon_constraints(in_gluon: Callable[[Config], bool]) -> tuple[Constraint, Constraint]:
    """Configs for which `in_gluon` is true need this machine's Gluon and a Hopper GPU."""

    def gluon_is_there(config: Config, workload: Workload, device: Device) -> bool:
        return not in_gluon(config) or triton_versions.is_known()

    def is_hopper(config: Config, workload: Workload, device: Device) -> bool:
        return not in_gluon(config) or device.target == _HOPPER

    return (
        Constraint("gluon", gluon_is_there, f"Gluon needs Triton {_OLDEST} to {_NEWEST} here"),
        Constraint("hopper", is_hopper, f"the Gluon kernel is written for {_HOPPER}"),
    )
