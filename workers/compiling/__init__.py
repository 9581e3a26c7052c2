"""Build variants for targets that need not be present, and install them where they run.

`build` runs in a builder's child process; `install` and `count_compilations` run in a runner's. The
runner launches artifacts without compiling, and the count shows it. See docs/building.md.

`job` builds one variant through `gpu` (Triton) or `inductor` (CPU); `cache` packs and installs the
compilers' cache files, `binary` reads a binary's facts, `limits` applies the device's limits,
`launch_key` explains cache misses, and `process_builder` is the parent process.
"""

from workers.compiling.absent_target import use_target
from workers.compiling.binary import disassemble
from workers.compiling.cache import install, read_files, use_cache
from workers.compiling.inductor import cpu_conditions
from workers.compiling.job import build, build_kernel
from workers.compiling.launch_key import Compilations, count_compilations

__all__ = [
    "Compilations",
    "build",
    "build_kernel",
    "count_compilations",
    "cpu_conditions",
    "disassemble",
    "install",
    "read_files",
    "use_cache",
    "use_target",
]
