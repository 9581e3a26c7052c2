"""Keep the linear algebra of small models on one thread."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import scipy

_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads")


@cache
def one_thread() -> None:
    """Tell the OpenBLAS libraries in the wheels of numpy and scipy to use one thread from now on.

    Matrices here have some hundred rows. While builders keep every core busy, threads that wait for
    each other make such products many times slower. Other builds of numpy are left as they are;
    there, set OMP_NUM_THREADS=1 or its like.
    """
    for package in (np, scipy):
        assert package.__file__ is not None
        home = Path(package.__file__).parent
        for file in sorted(home.with_name(f"{home.name}.libs").glob("*openblas*")):
            library = ctypes.CDLL(str(file))
            for name in _SETTERS:
                if hasattr(library, name):
                    getattr(library, name)(1)
                    break
