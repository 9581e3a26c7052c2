"""Apply tables at the start of every Python process of `tuner apply`; Python imports this file.

`tuner apply` puts this folder first on PYTHONPATH. A `sitecustomize` of the user's own, which this
file hides, is imported afterwards.
"""

import importlib
import os
import sys


def _apply() -> None:
    try:
        import tuner  # noqa: F401 - reads TUNER_APPLY
    except ImportError as error:
        sys.stderr.write(
            f"tuner: no tables are applied: this Python cannot import tuner ({error})\n"
        )


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
_apply()
