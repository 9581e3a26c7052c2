"""How tests call the operators: one case for each function of `tuner.ops`, in files as there.

A new operator gets a case in the file of its subject; all tests of every operator find it there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from operator_cases.case import Case, KernelCase, Tensors
from search_spaces.records import Workload
from tuner import ops

_FILES = [importlib.import_module(f"{__name__}.{each.name}")
          for each in pkgutil.iter_modules(__path__)]  # fmt: skip
_FOUND = {name: case for file in _FILES for name, case in getattr(file, "CASES", {}).items()}
#: By the name of the function, in the order of `ops.__all__`.
CASES: dict[str, Case] = dict(sorted(_FOUND.items(), key=lambda item: ops.__all__.index(item[0])))
#: By the name of the kernel.
KERNELS: dict[str, KernelCase] = {
    name: kernel for case in CASES.values() for name, kernel in case.kernels.items()
}


def call_of(kernel: str, workload: Workload, tensors: Tensors) -> Callable[[], Any] | None:
    """The call that has this problem of a kernel; None for a problem that no operator has.

    Its results are the kernel's outputs in their order.
    """
    if "tolerance" in workload or kernel not in KERNELS:
        return None
    return KERNELS[kernel].call(workload, tensors)
