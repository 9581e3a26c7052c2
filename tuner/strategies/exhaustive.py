"""Every feasible config once, in the space's own order or in an order shuffled by the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace


class ExhaustiveStrategy:
    """All of the space. `shuffle` spreads early results over it, at the price of listing it."""

    replays = True

    def __init__(
        self, space: BoundSpace, seed: int = 0, *, name: str = "exhaustive", shuffle: bool = False
    ) -> None:
        self.name = name
        self._configs: Iterator[Config] = iter(space.enumerate())
        if shuffle:
            listed = list(self._configs)
            random.Random(seed).shuffle(listed)
            self._configs = iter(listed)

    def ask(self, n: int) -> list[Config]:
        return list(itertools.islice(self._configs, n))

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """Results do not change the order."""
