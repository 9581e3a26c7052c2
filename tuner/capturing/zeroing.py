"""What the pre_hook of a config does, seen on tensors without storage.

A hook may set whole tensors to zero, and block shapes of descriptors to those of the config. These
are set again for every launch, and do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.source_positions import one_line
from tuner.capturing.arguments import is_descriptor, is_tensor

if TYPE_CHECKING:
    import torch


class HookProblem(Exception):
    """A pre_hook that does more than set tensors to zero; the text says what."""


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the tensors that operators write inside a block, and whether they become zero."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[torch.Tensor, bool]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        named |= kwargs or {}
        for each in func._schema.arguments:
            if each.alias_info is not None and each.alias_info.is_write and each.name in named:
                written = named[each.name]
                for tensor in written if isinstance(written, list | tuple) else [written]:
                    self.found.append((tensor, _sets_zero(func._schema.name, named)))
        return func(*args, **(kwargs or {}))


def zeroed_by(
    hook: Callable[..., Any], arguments: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[str, ...]:
    """The arguments that a hook sets to zero.

    arguments: of the call, with tensors on the device `meta`. values: what the config sets. Raises
    `HookProblem` for a hook that does something else.
    """
    given = {**arguments, **values}
    before, writes = dict(given), _Writes()
    try:
        with writes:
            hook(given)
    except Exception as error:
        raise HookProblem(f"its pre_hook raises {one_line(error)}") from error
    replaced = [name for name in {**before, **given} if before.get(name) is not given.get(name)]
    if replaced:
        raise HookProblem(f"its pre_hook replaces the argument {replaced[0]}")
    zeroed: dict[str, None] = {}
    for tensor, is_zero in writes.found:
        touched = {
            name: _range(own) == _range(tensor)
            for name, value in arguments.items()
            for own in _tensors(value)
            if own.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        }
        if touched and not (is_zero and any(touched.values())):
            name = next(iter(touched))
            raise HookProblem(f"its pre_hook changes {name} to something other than zero")
        zeroed |= dict.fromkeys(name for name, whole in touched.items() if whole)
    return tuple(zeroed)


def _sets_zero(operator: str, named: Mapping[str, Any]) -> bool:
    if operator in ("aten::zero_", "aten::_foreach_zero_"):
        return True
    value: Any = named.get("value")
    if operator == "aten::fill_" and is_tensor(value):
        value = None if value.is_meta else value.item()
    return operator == "aten::fill_" and value is not None and not value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if is_tensor(value):
        yield value
    elif is_descriptor(value):
        yield value.base
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins in its storage, and how many bytes its elements have."""
    width = tensor.element_size()
    return int(tensor.storage_offset()) * width, tensor.numel() * width
