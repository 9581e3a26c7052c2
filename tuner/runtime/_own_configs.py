"""A kernel's own configs on the arguments of one launch, and the `pre_hook` of any config.

A hook belongs to a config. Triton takes it from the config that the kernel's `early_config_prune`
keeps or makes, not from the decorator's. A launch without the hook of its config may give wrong
results, so a config whose hook is not known is not launched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import Any, TypeAlias

#: `early_config_prune`, bound to the arguments of a launch.
Prune: TypeAlias = Callable[[list[Any]], Iterable[Any]]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: How deep captured values are compared.
_DEPTH = 8


class UnknownHook(Exception):
    """A config of which it is not known whether, and with which hook, the library launches it."""


class OwnConfigs:
    """The configs of a kernel on some arguments.

    listed: those of the decorator, as `triton.Config`. prune: what the library makes of them on
    these arguments; None where it takes them as they are.
    """

    def __init__(self, listed: Sequence[Any], prune: Prune | None) -> None:
        self.listed = listed
        #: Triton prunes where there is a choice.
        self.prune = prune if len(listed) > 1 else None

    @cached_property
    def kept(self) -> Sequence[Any]:
        """What the library's pruning keeps or makes. Raises what it raises."""
        return self.listed if self.prune is None else self._prune(self.listed)

    @cached_property
    def all(self) -> Sequence[Any]:
        """The kept ones first, then those of the decorator."""
        return self.kept if self.prune is None else [*self.kept, *self.listed]

    @cached_property
    def makes_configs(self) -> bool:
        """Whether pruning changes configs, or makes others than the decorator's."""
        if self.prune is None:
            return False
        own = [item.all_kwargs() for item in self.listed]
        return any(item.all_kwargs() not in own for item in self.kept)

    @cached_property
    def has_hooks(self) -> bool:
        """Whether any config has a hook."""
        return any(hook_of(item) is not None for item in self.all)

    def equal(self, config: Mapping[str, Any]) -> Any:
        """The first own config that equals another one in all that this sets; None without one."""
        return next((item for item in self.all if _equals(item, config)), None)

    def keeps(self, config: Mapping[str, Any]) -> bool:
        """Whether pruning keeps a config, or leaves it as it is when asked for it alone."""
        return any(_equals(item, config) for item in self.kept) or bool(self._alone(config))

    def hook(self, config: Mapping[str, Any]) -> Any:
        """The hook with which the library launches a config; None for no hook.

        config: what a launch passes for it. Raises `UnknownHook` for a config that the library does
        not have, unless all configs of the library have one hook.
        """
        for items in (self.kept, self._alone(config)):
            if equal := [item for item in items if _equals(item, config)]:
                return _only_hook(equal)
        return _only_hook(self.all)

    def _alone(self, config: Mapping[str, Any]) -> Sequence[Any]:
        """The config as pruning leaves it; nothing where it is dropped or changed."""
        if self.prune is None:
            return []
        try:
            made = self._prune([as_config(config)])
        except Exception:  # a combination that the library never uses
            return []
        return [item for item in made if _equals(item, config)]

    def _prune(self, configs: Iterable[Any]) -> list[Any]:
        assert self.prune is not None
        return list(self.prune(list(map(_copy_config, configs))))


def hook_of(item: Any) -> Any:
    """The hook of a `triton.Config`."""
    return getattr(item, "pre_hook", None)


def as_config(config: Mapping[str, Any], hook: Any = None) -> Any:
    """What a launch passes as `triton.Config`."""
    from triton import Config

    options = Config({}).all_kwargs().keys() | {"maxnreg"}
    given = {name: value for name, value in config.items() if name in options}
    kwargs = {name: value for name, value in config.items() if name not in options}
    return Config(kwargs, **given, pre_hook=hook)


def is_same_hook(one: Any, other: Any, depth: int = _DEPTH) -> bool:
    """Whether two hooks do the same: one object, or one code with equal captured values."""
    if one is other:
        return True
    if type(one) is not type(other) or not depth:
        return False
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if isinstance(one, FunctionType):
        return (
            one.__code__ == other.__code__
            and one.__globals__ is other.__globals__
            and is_same_hook(_list_captured(one), _list_captured(other), depth)
        )
    if isinstance(one, partial):
        first, second = ([each.func, each.args, each.keywords] for each in (one, other))
        return is_same_hook(first, second, depth)
    if isinstance(one, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(
            is_same_hook(*pair, depth - 1) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and is_same_hook([*one.values()], [*other.values()], depth)
    return False


def _list_captured(hook: FunctionType) -> list[Any]:
    cells = hook.__closure__ or ()
    try:
        held = [cell.cell_contents for cell in cells]
    except ValueError:  # an empty cell
        held = [*cells]
    return [held, hook.__defaults__, hook.__kwdefaults__]


def _only_hook(items: Sequence[Any]) -> Any:
    hooks = [hook_of(item) for item in items]
    if any(not is_same_hook(hooks[0], hook) for hook in hooks):
        raise UnknownHook
    return hooks[0] if hooks else None


def _equals(item: Any, config: Mapping[str, Any]) -> bool:
    full = item.all_kwargs()
    return all(name in full and _is_equal(full[name], value) for name, value in config.items())


def _is_equal(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def _copy_config(item: Any) -> Any:
    """A config that a pruner may change without a change of the original."""
    found = copy.copy(item)
    found.kwargs = dict(item.kwargs)
    return found
