"""What may be tuned: kernels, their workloads and their search spaces. Importing needs no torch."""

from __future__ import annotations

from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.errors import KernelError, SpaceError, TunerError, WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Status, TensorSpec, Toolchain, Workload
from search_spaces.registry import available, load, spec_of
from search_spaces.space import SearchSpace
from tuner.import_names import lazy_names

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

__getattr__ = lazy_names(__name__, {})
