"""tuner: a farm that tunes and benchmarks kernels, and ships the winners as tables.

Everything that users need is imported from here: `from tuner import Kernel, Workload, tune`. The
command `tuner` runs campaigns from a shell; `tuner.runtime` is for kernel libraries. Names are
imported at first use, so importing this package loads none of the heavy dependencies.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from reports import render as render_report
    from reports import write as write_report
    from results_db.store import Store
    from search_spaces.adoption.adopt import adopt
    from search_spaces.bound import BoundSpace
    from search_spaces.constraints import Constraint, Preference
    from search_spaces.dims import Dims, tolerance_of
    from search_spaces.errors import KernelError, SpaceError, TunerError, WorkloadError
    from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
    from search_spaces.kernels.features import tile_features
    from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
    from search_spaces.recorded.recorded_kernel import load_kernel as recorded_kernel
    from search_spaces.recorded.recorded_space import RecordedSpace
    from search_spaces.records import Config, Device, Status, TensorSpec, Toolchain, Value, Workload
    from search_spaces.registry import available as available_kernels
    from search_spaces.registry import load as load_kernel
    from search_spaces.size_range import Range
    from search_spaces.space import SearchSpace
    from search_spaces.tensors import compiled, generator, named, random_tensor
    from tuner import ops
    from tuner.api import RangeResult, Session, TuneResult, session, tune
    from tuner.campaign import RunOptions, RunOutcome, run_campaign
    from tuner.capturing import Calls, CapturedKernel, capture, load_calls
    from tuner.optimizing import OptimizeResult, optimize
    from tuner.runtime import applications, applied, apply, load_bundle
    from tuner.strategies.discrete_gp_sampler import DiscreteGPSampler

__version__ = "0.1.0"
__all__ = [
    "Boolean",
    "BoundSpace",
    "Calls",
    "CapturedKernel",
    "Choice",
    "Config",
    "Constraint",
    "Cost",
    "Device",
    "Dims",
    "DiscreteGPSampler",
    "Integer",
    "Kernel",
    "KernelError",
    "Launch",
    "OptimizeResult",
    "Parameter",
    "PowerOfTwo",
    "Preference",
    "Range",
    "RangeResult",
    "RecordedSpace",
    "RunOptions",
    "RunOutcome",
    "SearchSpace",
    "Session",
    "SpaceError",
    "Status",
    "Store",
    "TensorSpec",
    "Tolerance",
    "Toolchain",
    "TuneResult",
    "TunerError",
    "Value",
    "Workload",
    "WorkloadError",
    "__version__",
    "adopt",
    "applications",
    "applied",
    "apply",
    "available_kernels",
    "capture",
    "compiled",
    "generator",
    "load_bundle",
    "load_calls",
    "load_kernel",
    "named",
    "ops",
    "optimize",
    "random_tensor",
    "recorded_kernel",
    "render_report",
    "run_campaign",
    "session",
    "tile_features",
    "tolerance_of",
    "tune",
    "write_report",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Boolean": "search_spaces.params",
        "BoundSpace": "search_spaces.bound",
        "Calls": "tuner.capturing",
        "CapturedKernel": "tuner.capturing",
        "Choice": "search_spaces.params",
        "Config": "search_spaces.records",
        "Constraint": "search_spaces.constraints",
        "Cost": "search_spaces.kernel",
        "Device": "search_spaces.records",
        "Dims": "search_spaces.dims",
        "DiscreteGPSampler": "tuner.strategies",
        "Integer": "search_spaces.params",
        "Kernel": "search_spaces.kernel",
        "KernelError": "search_spaces.errors",
        "Launch": "search_spaces.kernel",
        "OptimizeResult": "tuner.optimizing",
        "Parameter": "search_spaces.params",
        "PowerOfTwo": "search_spaces.params",
        "Preference": "search_spaces.constraints",
        "Range": "search_spaces.size_range",
        "RangeResult": "tuner.api",
        "RecordedSpace": "search_spaces.recorded.recorded_space",
        "RunOptions": "tuner.campaign",
        "RunOutcome": "tuner.campaign",
        "SearchSpace": "search_spaces.space",
        "SpaceError": "search_spaces.errors",
        "Status": "search_spaces.records",
        "Store": "results_db.store",
        "TensorSpec": "search_spaces.records",
        "Tolerance": "search_spaces.kernel",
        "Toolchain": "search_spaces.records",
        "Session": "tuner.api",
        "TuneResult": "tuner.api",
        "session": "tuner.api",
        "TunerError": "search_spaces.errors",
        "Value": "search_spaces.records",
        "Workload": "search_spaces.records",
        "WorkloadError": "search_spaces.errors",
        "adopt": "search_spaces.adoption.adopt",
        "applications": "tuner.runtime",
        "applied": "tuner.runtime",
        "apply": "tuner.runtime",
        "available_kernels": "search_spaces.registry:available",
        "capture": "tuner.capturing",
        "compiled": "search_spaces.tensors",
        "generator": "search_spaces.tensors",
        "load_bundle": "tuner.runtime",
        "load_calls": "tuner.capturing",
        "load_kernel": "search_spaces.registry:load",
        "named": "search_spaces.tensors",
        "ops": "tuner.ops:",
        "optimize": "tuner.optimizing",
        "random_tensor": "search_spaces.tensors",
        "recorded_kernel": "search_spaces.recorded.recorded_kernel:load_kernel",
        "render_report": "reports:render",
        "run_campaign": "tuner.campaign",
        "tile_features": "search_spaces.kernels.features",
        "tolerance_of": "search_spaces.dims",
        "tune": "tuner.api",
        "write_report": "reports:write",
    },
)


def __dir__() -> list[str]:
    return __all__


if os.environ.get("TUNER_BUNDLE") or os.environ.get("TUNER_COMPILE") == "never":
    importlib.import_module("tuner.runtime").load_environment()
if os.environ.get("TUNER_APPLY"):
    importlib.import_module("tuner.runtime").apply_environment()
