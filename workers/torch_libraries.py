"""torch's shared libraries, loaded in advance.

Loading them takes the system's linker about a second where torch is built for CUDA. `import torch`
keeps the interpreter's lock meanwhile; `ctypes` does not, so another thread can import modules.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os

#: As torch loads them: what the others need is visible to all, torch itself is not. The library of
#: torch's Python interface is left to `import torch`, because its set-up needs the lock.
_LIBRARIES = (
    ("libtorch_global_deps.so", ctypes.RTLD_GLOBAL),
    ("libtorch.so", ctypes.DEFAULT_MODE),
)


def load() -> None:
    """Load the libraries; `import torch` finds them loaded. Raises OSError if one is missing."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return
    for name, mode in _LIBRARIES:
        ctypes.CDLL(os.path.join(os.path.dirname(found.origin), "lib", name), mode=mode)
