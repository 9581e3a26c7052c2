"""Build variants for targets, with or without a device of that kind, and install them elsewhere.

`build` runs in a builder's child process, `install` and `count_compilations` in a runner's: what
was built is launched there without compiling, and the count proves it. See docs/building.md.
"""

from workers.build.cache import install, use_cache
from workers.build.counting import Compilations, count_compilations
from workers.build.inductor import cpu_conditions
from workers.build.job import build, build_kernel
from workers.build.target import use_target

__all__ = [
    "Compilations",
    "build",
    "build_kernel",
    "count_compilations",
    "cpu_conditions",
    "install",
    "use_cache",
    "use_target",
]
