"""The keywords of `tune` and of sessions: each is spelled once, as `Annotated[type, default]`.

Type checkers and editors read the classes. `list_keywords` makes of one the signature that `help`
and notebooks show. The docstring of `tune` says what each keyword means.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeAlias, TypedDict, TypeVar, get_type_hints

from search_spaces.errors import TunerError
from search_spaces.size_range import Range
from tuner.progress import ProgressCallback

P = ParamSpec("P")
R = TypeVar("R")
Budget: TypeAlias = int | str | Mapping[str, Any]
#: Keywords of captured calls, which `tune` no longer takes, with an example of each.
_DECLARED = {
    "widen": "True", "space": '{"BLOCK": [64, 128]}', "reference": "function", "tolerance": "0.01",
    "free": '["step"]', "sizes": '["seed"]',
}  # fmt: skip


class _SearchKeywords(TypedDict, total=False):
    budget: Annotated[Budget, 100]
    strategy: Annotated[str, "bayes"]
    seed: Annotated[int, 0]
    fresh: Annotated[bool, False]
    ranges: Annotated[Mapping[str, Range | tuple[int, int]] | None, None]


class _SharedKeywords(TypedDict, total=False):
    target: Annotated[str | None, None]
    settings: Annotated[Mapping[str, Any] | None, None]
    on_progress: Annotated[ProgressCallback | None, None]
    progress: Annotated[bool | None, None]


class _PlaceKeywords(TypedDict, total=False):
    pool: Annotated[str, "local"]
    database: Annotated[str | None, None]
    trace: Annotated[str | os.PathLike[str] | None, None]


class CallKeywords(_SearchKeywords, _SharedKeywords, total=False):
    """Keywords of `Session.tune`."""


class SessionKeywords(_SharedKeywords, _PlaceKeywords, total=False):
    """Keywords of `tuner.session`."""


class TuneKeywords(CallKeywords, SessionKeywords, total=False):
    """Keywords of `tuner.tune`."""


def list_keywords(keywords: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function of `**keywords` the signature that lists them; it is called with all."""
    listed = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=found.__origin__,
            default=found.__metadata__[0],
        )
        for name, found in get_type_hints(keywords, include_extras=True).items()
    ]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function)
        signature = own.replace(parameters=[*list(own.parameters.values())[:-1], *listed])

        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            for name in sorted(_DECLARED.keys() & given.keys()):
                raise TunerError(
                    f"{name}= of captured calls is no keyword of {function.__name__}",
                    f'tune the kernel calls["k"].declare({name}={_DECLARED[name]})',
                )
            try:
                bound = signature.bind(*args, **given)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        call.__dict__["__signature__"] = signature
        return call

    return decorate
