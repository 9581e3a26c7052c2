"""Dialects in which a family offers the same operation: Triton, and Gluon for Hopper.

Gluon (`triton.experimental.gluon`) leaves layouts, copies, barriers and the division of work among
warps to the kernel. It is experimental, and its names change between versions of Triton.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from search_spaces.constraints import Constraint
from search_spaces.records import Config, Device, Workload

TRITON, GLUON = "triton", "gluon"
DIALECTS = (TRITON, GLUON)
#: The first version of Triton whose Gluon has the names that the kernels use, and the first one
#: with which they have not been compiled.
_FIRST, _UNTRIED = (3, 6), (3, 8)
#: wgmma and TMA as the kernels use them; later architectures multiply in tensor memory.
_HOPPER = "cuda:90"


@cache
def has_gluon() -> bool:
    """Whether this machine's Triton has the Gluon that the kernels are written for.

    The version is read from Triton's file where Triton has not been imported: importing takes long.
    """
    loaded = sys.modules.get("triton")
    version = getattr(loaded, "__version__", "") if loaded else _written_version()
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and _FIRST <= (int(found[1]), int(found[2])) < _UNTRIED


def _written_version() -> str:
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.origin:
        return ""
    text = Path(spec.origin).read_text(encoding="utf-8")
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else ""


def gluon_constraints(in_gluon: Callable[[Config], bool]) -> tuple[Constraint, Constraint]:
    """Configs for which `in_gluon` is true need this machine's Gluon and a Hopper GPU."""

    def gluon_is_there(config: Config, workload: Workload, device: Device) -> bool:
        return not in_gluon(config) or has_gluon()

    def is_hopper(config: Config, workload: Workload, device: Device) -> bool:
        return not in_gluon(config) or device.target == _HOPPER

    return (
        Constraint("gluon", gluon_is_there, "Gluon needs Triton 3.6 or 3.7 on this machine"),
        Constraint("hopper", is_hopper, f"the Gluon kernel is written for {_HOPPER}"),
    )
