"""Begin what a command asks of every Python process of a program; Python imports this file.

`tuner apply`, `tuner capture` and `tuner optimize` put this folder first on PYTHONPATH. A
`sitecustomize` of the user's own, which this file hides, is imported before. With
TUNER_OPERATORS=1, models get operators at their first call; until then, the thread that imports
torch runs operators in place of torch's functions.
"""

import importlib
import os
import sys


def _begin() -> None:
    try:
        import tuner  # noqa: F401 - reads TUNER_APPLY

        if os.environ.get("TUNER_CAPTURE_FOLDER"):
            importlib.import_module("tuner.capturing.child").begin()
        if os.environ.get("TUNER_OPERATORS") == "1":
            importlib.import_module("tuner.runtime._import_watch").after_import("torch", _replace)
    except ImportError as error:
        sys.stderr.write(f"tuner: {sys.executable} cannot import tuner ({error})\n")


def _replace() -> None:
    importlib.import_module("tuner.ops.patching").begin_replacing()


def _own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    hidden = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if hidden is not None:
            sys.modules["sitecustomize"] = hidden


_own()
_begin()
