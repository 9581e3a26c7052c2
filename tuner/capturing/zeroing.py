"""pre_hooks of configs, called on tensors of the call to see what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.adoption.autotuned import Autotuned
from search_spaces.source_positions import one_line
from search_spaces.tensors import generator
from tuner.capturing.arguments import functions_of, is_tensor, views_in
from tuner.capturing.inputs import arguments_of, made

if TYPE_CHECKING:
    from tuner.capturing.records import Call

_POISON = 0x5A


class HookProblem(Exception):
    """A pre_hook that does more than set tensors to zero; the text says what."""


def zeroed_by_hooks(
    call: Call, parts: Autotuned, contents: Mapping[str, bytes], device: str
) -> tuple[str, ...]:
    """The tensor arguments that the pre_hook of every config sets to zero.

    Block shapes of descriptors, which hooks set to those of a config, do not count: they are set
    again for every launch. Raises `HookProblem` for a hook that does something else, or that zeroes
    other tensors for other configs.
    """
    found: set[tuple[str, ...]] = set()
    for item in parts.tuner.configs:
        hook = getattr(item, "pre_hook", None)
        found.add(() if hook is None else _zeroed(call, hook, item, contents, device))
    if len(found) > 1:
        raise HookProblem("the pre_hooks of its configs set different tensors to zero")
    return next(iter(found), ())


def _zeroed(
    call: Call, hook: Any, item: Any, contents: Mapping[str, bytes], device: str
) -> tuple[str, ...]:
    import torch

    source = generator(0, device)
    tensors = [made(call, at, contents, source, device) for at in range(len(call.buffers))]
    for tensor in tensors:
        tensor.view(-1).view(torch.uint8).fill_(_POISON)
    arguments = arguments_of(call, tensors, functions_of(call.arguments.values()))
    given = {**arguments, **item.all_kwargs()}
    before = dict(given)
    try:
        hook(given)
    except Exception as error:
        raise HookProblem(f"its pre_hook raises {one_line(error)}") from error
    replaced = [name for name in {**before, **given} if before.get(name) is not given.get(name)]
    if replaced:
        raise HookProblem(f"its pre_hook replaces the argument {replaced[0]}")
    zeroed = []
    for name, value in arguments.items():
        if not is_tensor(value) or not views_in(call.arguments[name]):
            continue
        if not bool(value.contiguous().view(-1).view(torch.uint8).any()):
            zeroed.append(name)
        elif not bool((value.contiguous().view(-1).view(torch.uint8) == _POISON).all()):
            raise HookProblem(f"its pre_hook changes {name} to something other than zero")
    return tuple(zeroed)
