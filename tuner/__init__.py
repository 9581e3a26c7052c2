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
        "reports": ("render as render_report", "write as write_report"),
        "results_db.store": ("Store",),
        "search_spaces.adoption.adopt": ("adopt",),
        "search_spaces.bound": ("BoundSpace",),
        "search_spaces.constraints": ("Constraint", "Preference"),
        "search_spaces.dims": ("Dims", "tolerance_of"),
        "search_spaces.errors": ("KernelError", "SpaceError", "TunerError", "WorkloadError"),
        "search_spaces.kernel": ("Cost", "Kernel", "Launch", "Tolerance"),
        "search_spaces.kernels.features": ("tile_features",),
        "search_spaces.params": ("Boolean", "Choice", "Integer", "Parameter", "PowerOfTwo"),
        "search_spaces.recorded.recorded_kernel": ("load_kernel as recorded_kernel",),
        "search_spaces.recorded.recorded_space": ("RecordedSpace",),
        "search_spaces.records": (
            "Config",
            "Device",
            "Status",
            "TensorSpec",
            "Toolchain",
            "Value",
            "Workload",
        ),
        "search_spaces.registry": ("available as available_kernels", "load as load_kernel"),
        "search_spaces.size_range": ("Range",),
        "search_spaces.space": ("SearchSpace",),
        "search_spaces.tensors": ("compiled", "generator", "named", "random_tensor"),
        "tuner": ("ops",),
        "tuner.api": ("RangeResult", "Session", "TuneResult", "session", "tune"),
        "tuner.campaign": ("RunOptions", "RunOutcome", "run_campaign"),
        "tuner.capturing": ("Calls", "CapturedKernel", "capture", "load_calls"),
        "tuner.optimizing": ("OptimizeResult", "optimize"),
        "tuner.runtime": ("applications", "applied", "apply", "load_bundle"),
        "tuner.strategies.discrete_gp_sampler": ("DiscreteGPSampler",),
    },
)


def __dir__() -> list[str]:
    return __all__


if os.environ.get("TUNER_BUNDLE") or os.environ.get("TUNER_COMPILE") == "never":
    importlib.import_module("tuner.runtime").load_environment()
if os.environ.get("TUNER_APPLY"):
    importlib.import_module("tuner.runtime").apply_environment()
