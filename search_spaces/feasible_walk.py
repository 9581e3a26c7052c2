"""The configs that keep all rules, without asking a rule twice what it has answered.

Most rules read few parameters. A rule is pure: what it said of some values of those that it read
holds for all configs with these values, and a walk leaves out the branches that it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from search_spaces.params import Parameter, is_active
from search_spaces.records import Config, Value


class _Noted(dict[str, Value]):
    """A config that notes which parameters are read; `whole` once it is read as a whole."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()
        self.whole = False

    def __getitem__(self, name: str) -> Value:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(f"{name}")
        return super().__contains__(name)


def _note_whole(name: str) -> Callable[..., Any]:
    def call(config: _Noted, *others: Any) -> Any:
        config.whole = True
        return getattr(dict, name)(config, *others)

    return call


for _name in (
    *("__iter__", "__reversed__", "__len__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__"),
    *("keys", "values", "items", "copy", "pop", "popitem", "setdefault"),
):
    setattr(_Noted, _name, _note_whole(_name))


class _Rule:
    """A check and what it has answered, by the values of the parameters that it reads."""

    def __init__(self, check: Callable[[Config], bool], positions: Mapping[str, int]) -> None:
        self._check = check
        self._positions = positions
        self._read: set[int] = set()
        self._whole = False
        #: The position of the last parameter that it reads: the answer hangs on no later one.
        self.last = len(positions)
        self._values: Callable[[Sequence[int]], object] = itemgetter(self.last)
        self._answers: dict[object, bool] = {}

    def find_answer(self, chosen: Sequence[int]) -> bool | None:
        """What it has said of these values; None where it was not asked."""
        return self._answers.get(self._values(chosen))

    def holds(self, config: Config, chosen: Sequence[int]) -> bool:
        if self._whole:
            return self._check(config)
        answer = self.find_answer(chosen)
        if answer is None:
            noted = _Noted(config)
            answer = self._check(noted)
            self._note(noted)
            if not self._whole:
                self._answers[self._values(chosen)] = answer
        return answer

    def _note(self, noted: _Noted) -> None:
        read = self._read.union(self._positions[x] for x in noted.read if x in self._positions)
        self._whole = noted.whole or len(read) == len(self._positions)
        if self._whole or read != self._read:
            self._answers.clear()
        if read != self._read:
            self._read, self.last = read, max(read)
            self._values = itemgetter(*sorted(read), len(self._positions))


def walk(
    parameters: Sequence[Parameter],
    values: Mapping[str, Sequence[Value]],
    checks: Sequence[Callable[[Config], bool]] = (),
) -> Iterator[dict[str, Value]]:
    """Every config of which all checks are true, in the order of declaration and values."""
    positions = {parameter.name: at for at, parameter in enumerate(parameters)}
    rules = [_Rule(check, positions) for check in checks]
    #: The number of each parameter's value, -1 where it is inactive; one more, always the same.
    chosen = [-1] * (len(parameters) + 1)
    partial: dict[str, Value] = {}

    def allowed(at: int) -> bool:
        return all(rule.last != at or rule.find_answer(chosen) is not False for rule in rules)

    def descend(at: int) -> Iterator[dict[str, Value]]:
        if at == len(parameters):
            config = dict(partial)
            if all(rule.holds(config, chosen) for rule in rules):
                yield config
            return
        parameter = parameters[at]
        if not is_active(parameter, partial):
            chosen[at] = -1
            if allowed(at):
                yield from descend(at + 1)
            return
        for chosen[at], value in enumerate(values[parameter.name]):
            partial[parameter.name] = value
            if allowed(at):
                yield from descend(at + 1)
        del partial[parameter.name]

    return descend(0)
