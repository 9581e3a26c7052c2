"""Build variants for targets that need not be present, and install them where they run.

`build` runs in a builder's child process; `install` and `count_compilations` run in a runner's. The
runner launches artifacts without compiling, and the count shows it. See docs/building.md.

`job` builds one variant through `gpu` (Triton) or `inductor` (CPU); `cache` packs and installs the
compilers' cache files, `binary` reads a binary's facts, `limits` applies the device's limits,
`launch_key` explains cache misses, and `process_builder` is the parent process.
"""

from workers.compiling.binary import disassemble
from workers.compiling.cache import install, read_files
from workers.compiling.job import build
from workers.compiling.launch_key import count_compilations

__all__ = [
    "build",
    "count_compilations",
    "disassemble",
    "install",
    "read_files",
]
