"""Hooks by which the calls of a model ask for numerics.

Apart from what patches models, since `disable` loads Dynamo, which takes a second.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from tuner.ops.replacing import numerics


class Asking:
    """Hooks of a model: its calls ask for numerics, outside of graphs."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entered: list[AbstractContextManager[None]] = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(self, *_: object) -> None:
        self._entered.append(numerics(self._kind))
        self._entered[-1].__enter__()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def leave(self, *_: object) -> None:
        self._entered.pop().__exit__(None, None, None)
