"""The values of parameters as the rows and colours of figures: labels, grouped where many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.quantity import clean, plain
from results_db.stored_records import TrialRecord
from search_spaces.records import Value

_MOST_VALUES = 10


@dataclass(frozen=True, slots=True)
class ValueLabels:
    """The labels of one parameter's values over some trials."""

    #: In the order of the figure.
    shown: tuple[str, ...]
    #: One per trial.
    of: tuple[str, ...]


def label_values(trials: Sequence[TrialRecord]) -> dict[str, ValueLabels]:
    """The labels of each parameter that varies, by its name, in the order of names.

    A numeric parameter with more than ten values is grouped into ranges with about equally many
    trials.
    """
    found = {}
    for name in sorted({name for trial in trials for name in trial.config}):
        keys = [_key(trial.config.get(name)) for trial in trials]
        texts = {key: clean(text) for key, text in _groups(keys).items()}
        shown = tuple(dict.fromkeys(texts.values()))
        if len(shown) > 1:
            found[clean(name)] = ValueLabels(shown, tuple(texts[key] for key in keys))
    return found


def _key(value: Value) -> tuple[str, Value]:
    """The identity of a value: True differs from 1, but 1 equals 1.0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number" if number else type(value).__name__), value


def _groups(keys: list[tuple[str, Value]]) -> dict[tuple[str, Value], str]:
    """The label of each value by its key (see `_key`), in the order of the figure."""
    known = set(keys)
    numbers = sorted(
        float(value) for kind, value in known if kind == "number" and value is not None
    )
    others = sorted((key for key in known if key[0] != "number"), key=str)
    shown: dict[tuple[str, Value], str] = {
        ("number", number): f"{number:.12g}" for number in numbers
    }
    if len(numbers) > _MOST_VALUES:
        ranked = sorted(
            float(value) for kind, value in keys if kind == "number" and value is not None
        )
        cuts = sorted({ranked[len(ranked) * step // 8] for step in range(8)})
        edges = [*cuts[1:], math.inf]
        for low, edge in zip(cuts, edges, strict=True):
            members = [number for number in numbers if low <= number < edge]
            ends = list(dict.fromkeys((plain(members[0]), plain(members[-1]))))
            shown |= {("number", number): " to ".join(ends) for number in members}
    return {**shown, **{key: f"{key[1]}" for key in others}}
