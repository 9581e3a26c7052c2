"""`bundle_processes.py` in an environment of its own, with torch already imported."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path

from spaces_forks import serve


def prepare() -> None:
    importlib.import_module("torch")


def main() -> None:
    """Run it; then print what it has written to stderr."""
    folder, arguments, environment = json.load(sys.stdin)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments
    runpy.run_path(f"{Path(__file__).with_name('bundle_processes.py')}", run_name="__main__")
    sys.stderr.flush()
    print(json.dumps(os.pread(2, 1 << 20, 0).decode()))


if __name__ == "__main__":
    serve(main, prepare)
