"""Run the script of a test, `[SCRIPT, ARGUMENT...]` as JSON, with Inductor already imported."""

from __future__ import annotations

import importlib
import json
import sys

from spaces_forks import serve


def prepare() -> None:
    for module in ("torch._dynamo.backends.inductor", "torch._inductor.compile_fx"):
        importlib.import_module(module)


def main() -> None:
    script, *arguments = json.load(sys.stdin)
    sys.argv[1:] = arguments
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    serve(main, prepare)
