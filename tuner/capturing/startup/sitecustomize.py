"""Started by every Python process of `tuner capture`, because its folder is on PYTHONPATH.

Python imports one module of this name. The one of the user's environment is run first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _run_the_users() -> None:
    folders = [folder for folder in sys.path if os.path.abspath(folder or ".") != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_the_users()
try:
    from tuner.capturing import child
except ImportError as error:
    print(f"tuner capture: {sys.executable} cannot import tuner ({error})", file=sys.stderr)
else:
    child.begin()
