"""What may be tuned: kernels, their workloads and their search spaces. Importing needs no torch.

Names are imported at first use: a listing of results needs errors and records, no kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from search_spaces.bound import BoundSpace
    from search_spaces.constraints import Constraint, Preference
    from search_spaces.errors import KernelError, SpaceError, TunerError, WorkloadError
    from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
    from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
    from search_spaces.records import Config, Device, Status, TensorSpec, Toolchain, Workload
    from search_spaces.registry import available, load, spec_of
    from search_spaces.space import SearchSpace

__all__ = [
    "Boolean",
    "BoundSpace",
    "Choice",
    "Config",
    "Constraint",
    "Cost",
    "Device",
    "Integer",
    "Kernel",
    "KernelError",
    "Launch",
    "Parameter",
    "PowerOfTwo",
    "Preference",
    "SearchSpace",
    "SpaceError",
    "Status",
    "TensorSpec",
    "Tolerance",
    "Toolchain",
    "TunerError",
    "Workload",
    "WorkloadError",
    "available",
    "load",
    "spec_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Boolean": "search_spaces.params",
        "BoundSpace": "search_spaces.bound",
        "Choice": "search_spaces.params",
        "Config": "search_spaces.records",
        "Constraint": "search_spaces.constraints",
        "Cost": "search_spaces.kernel",
        "Device": "search_spaces.records",
        "Integer": "search_spaces.params",
        "Kernel": "search_spaces.kernel",
        "KernelError": "search_spaces.errors",
        "Launch": "search_spaces.kernel",
        "Parameter": "search_spaces.params",
        "PowerOfTwo": "search_spaces.params",
        "Preference": "search_spaces.constraints",
        "SearchSpace": "search_spaces.space",
        "SpaceError": "search_spaces.errors",
        "Status": "search_spaces.records",
        "TensorSpec": "search_spaces.records",
        "Tolerance": "search_spaces.kernel",
        "Toolchain": "search_spaces.records",
        "TunerError": "search_spaces.errors",
        "Workload": "search_spaces.records",
        "WorkloadError": "search_spaces.errors",
        "available": "search_spaces.registry",
        "load": "search_spaces.registry",
        "spec_of": "search_spaces.registry",
    },
)
