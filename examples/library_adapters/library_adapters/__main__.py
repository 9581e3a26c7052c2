"""Launch what a model needs of a kernel library, to capture it.

    tuner capture -o calls.json -- python -m library_adapters liger \\
        --model config.json --tp 2 --tokens 4096

Each layer runs three times, forward and backward, so that its GPU time is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner import TunerError
from tuner.integrations import load_model

from library_adapters import LIBRARIES

_REPEATS = 3


def launch(
    name: str, model: Path, tokens: Sequence[int], tensor_parallel: int, device: str
) -> list[str]:
    """Run all layers of a model; returns one line per layer that did not run.

    Raises TunerError for a library that is not installed or has no kernel for the model.
    """
    library = LIBRARIES[name]()
    layers = library.layers(load_model(model), tensor_parallel)
    if not layers:
        raise TunerError(
            f"{name} has no kernel that is known here for {model}",
            "capture a script of yours: tuner capture -o calls.json -- python SCRIPT",
        )
    failed = []
    for layer in layers:
        for count in tokens:
            try:
                for _ in range(_REPEATS):
                    layer.run(count, device)
            except ModuleNotFoundError as error:
                raise TunerError(
                    f"{name} cannot be imported: {error}", f"pip install {library.distribution}"
                ) from None
            except Exception as error:
                reason = f"{error}".partition("\n")[0]
                failed.append(f"{layer.name}, {count} tokens: {type(error).__name__}: {reason}")
    return failed


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m library_adapters")
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("--model", type=Path, required=True, help="the model's config.json")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096], help="tokens of a batch")
    parser.add_argument("--device", default="cuda", help="torch's name of the device")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a layer did not run, 2 for a wrong argument."""
    given = _arguments(words)
    try:
        failed = launch(given.library, given.model, given.tokens, given.tp, given.device)
    except TunerError as error:
        print(f"error: {error.message}\n{error.hint}", file=sys.stderr)
        return 2
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
