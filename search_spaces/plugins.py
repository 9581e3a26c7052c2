"""Plug-ins by name: what is built in, and what installed packages add by entry points.

A group of plug-ins has the name of its entry point group, `tuner.kernels` for example. A name
stands for a place, `module:object`, which is imported only when the plug-in is loaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from search_spaces.errors import TunerError
from search_spaces.foreign_imports import contain_foreign_code
from search_spaces.near_names import did_you_mean


class PluginGroup:
    """The plug-ins of one kind: a mapping of built-in names, and one entry point group.

    group: the entry point group, such as `tuner.exporters`. noun: what one plug-in is called in
    messages. built_in: places by name; no entry point replaces them. error: the class of the errors
    that this group raises. otherwise: what a user may write
    in place of a name, for messages.
    """

    def __init__(
        self,
        group: str,
        noun: str,
        built_in: Mapping[str, str],
        error: type[TunerError] = TunerError,
        otherwise: str = "",
    ) -> None:
        self.group, self.noun = group, noun
        self._built_in = dict(built_in)
        self._error, self._otherwise = error, otherwise

    def places(self) -> dict[str, str]:
        """All places by name, sorted by name; imports nothing."""
        found = {point.name: point.value for point in _entry_points(self.group)}
        return dict(sorted((found | self._built_in).items()))

    def names(self) -> tuple[str, ...]:
        """All names, sorted; imports nothing."""
        return tuple(self.places())

    def is_built_in(self, name: str) -> bool:
        """Whether a name stands for a part of tuner."""
        return name in self._built_in

    def place(self, name: str) -> str:
        """The place of a plug-in; raises the group's error for an unknown or ambiguous name."""
        # Built-in names come first: a search through all installed packages takes milliseconds.
        if name in self._built_in:
            return self._built_in[name]
        return self._entry_point(name).value

    def load(self, name: str) -> object:
        """The object at a plug-in's place.

        Raises the group's error for an unknown or ambiguous name, and for an entry point that
        cannot be imported. An error inside a built-in module is raised as it is.
        """
        if name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        point = self._entry_point(name)
        try:
            with contain_foreign_code():
                return point.load()
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._error(
                f"{self.noun} {name!r} cannot be loaded from {point.value} ({reason})",
                f"install what {_source(point)} needs, or uninstall it; it registers {name!r} "
                f"under the entry point group {self.group}",
            ) from error

    def unusable(self, name: str, problem: str) -> TunerError:
        """The error of a plug-in that was loaded but does not do what its group needs."""
        point = None if name in self._built_in else self._entry_point(name)
        return self._error(
            f"{self.noun} {name!r} {problem}",
            f"correct it in {_source(point)}, which registers it under the entry point group "
            f"{self.group}"
            if point
            else "report it: it is a part of tuner",
        )

    def unknown(self, name: str) -> TunerError:
        """The error of an unknown name."""
        known = self.names()
        return self._error(
            f"unknown {self.noun} {name!r}{did_you_mean(name, known)}",
            f"known: {', '.join(known)}; others come from the entry point group {self.group}"
            + (f", or {self._otherwise}" if self._otherwise else ""),
        )

    def _entry_point(self, name: str) -> EntryPoint:
        points = {p.value: p for p in _entry_points(self.group) if p.name == name}
        if not points:
            raise self.unknown(name)
        if len(points) > 1:
            sources = [f"{_source(point)} ({place})" for place, point in sorted(points.items())]
            raise self._error(
                f"{self.noun} {name!r} is registered {len(points)} times: {', '.join(sources)}",
                f"uninstall all but one; they share the entry point group {self.group}",
            )
        return next(iter(points.values()))


def _source(point: EntryPoint) -> str:
    """The package that an entry point belongs to."""
    return point.dist.name if point.dist is not None else point.module


def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    return _entry_points_on(group, tuple(sys.path))


@lru_cache(maxsize=32)
def _entry_points_on(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """path: the import path, under which the answer is kept."""
    return tuple(entry_points(group=group))
