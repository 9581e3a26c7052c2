"""What a call writes, found by running it on copies of its tensors.

The library's own config runs several times: on equal inputs, to see which buffers change and
whether the results are equal; and with those buffers filled with poison, to see which elements are
written and whether their old values matter. An element that changes on the drawn values is
written, whatever it makes of poison. Buffers of wide integers are not poisoned, because
they may be locks, counters or indices: a kernel could wait for ever or leave its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError
from search_spaces.source_positions import one_line
from search_spaces.tensors import generator
from tuner.capturing.arguments import placed_in, views_in
from tuner.capturing.call_configs import CallConfigs, launch_of, run
from tuner.capturing.call_records import Call, Written
from tuner.capturing.inputs import arguments_of, make_tensor
from tuner.capturing.zeroing import HookProblem

if TYPE_CHECKING:
    import torch

    Tensors = list[torch.Tensor]

_POISONS = (0xFF, 0x7F)
#: A relative difference of two runs on equal inputs that is no rounding.
_LARGEST_NOISE = 0.02


class _Stopped(Exception):
    """The call cannot be tuned; the text says why."""


def probe(call: Call, parts: AutotuneParts, contents: Mapping[str, bytes], device: str) -> Call:
    """The call with what it writes, or with the problem that keeps it from being tuned."""
    if call.problem or call.written is not None:
        return call
    if call.default is None:
        return call.with_problem("the library's own config is not known")
    try:
        configs = CallConfigs(call, parts)
        call = replace(call, zeroed=configs.list_zeroed(call.default))
        return replace(call, written=_Probe(call, configs, contents, device).find_written())
    except (_Stopped, HookProblem) as problem:
        return call.with_problem(f"{problem}")
    except KernelError as problem:
        return call.with_problem(problem.message)
    except Exception as problem:
        return call.with_problem(f"its own config does not run again: {one_line(problem)}")


class _Probe:
    def __init__(
        self, call: Call, configs: CallConfigs, contents: Mapping[str, bytes], device: str
    ) -> None:
        self._call, self._configs, self._contents, self._device = call, configs, contents, device
        self._placed = placed_in(call.arguments.values())

    def find_written(self) -> tuple[Written, ...]:
        inputs, again = self._inputs(0), self._inputs(1)
        first, second, other = self._run(inputs), self._run(inputs), self._run(again)
        changed = [
            at
            for at in range(len(inputs))
            if _differ(inputs[at], first[at]) or _differ(again[at], other[at])
        ]
        if not changed:
            raise _Stopped("no tensor changes when it runs again, so there is nothing to compare")
        noises = {at: _difference(first[at], second[at]) for at in changed}
        for at, noise in noises.items():
            name = self._call.buffers[at].name
            if noise is None:
                raise _Stopped(
                    f"{name} has NaN on values drawn like those of the call; "
                    'contents="keep" keeps the values themselves'
                )
            if noise > _LARGEST_NOISE:
                raise _Stopped(
                    f"its own config gives different results for {name} on equal inputs "
                    f"(relative difference {noise:.2g})"
                )
        poisonable = [at for at in changed if _is_poisonable(inputs[at])]
        unwritten = self._unwritten(inputs, poisonable)
        updated = self._find_updated(inputs, first, changed, poisonable, unwritten, noises)
        for at in poisonable:
            # An element that keeps poison, but not its value, depends on what it was: NaN plus
            # one is NaN, and 255 | 1 is 255.
            moved = unwritten[at] & _find_changed(inputs[at], first[at])
            if bool(moved.any()):
                updated.add(at)
                unwritten[at] &= ~moved
        return tuple(
            Written(
                buffer=at,
                updated=at in updated or at not in poisonable,
                partial=at in poisonable and bool(unwritten[at].any()),
                scale=_scale(first[at]),
                noise=noises[at] or 0.0,
            )
            for at in changed
        )

    def _unwritten(self, inputs: Tensors, poisonable: Sequence[int]) -> dict[int, torch.Tensor]:
        """Which elements keep both poisons, by buffer."""
        found: dict[int, torch.Tensor] = {}
        for byte in _POISONS:
            after = self._run(_poison(inputs, poisonable, byte))
            for at in poisonable:
                kept = _holding(after[at], byte)
                found[at] = found[at] & kept if at in found else kept
        return found

    def _find_updated(
        self,
        inputs: Tensors,
        first: Tensors,
        changed: Sequence[int],
        poisonable: Sequence[int],
        unwritten: Mapping[int, torch.Tensor],
        noises: Mapping[int, float | None],
    ) -> set[int]:
        """The buffers whose old values affect a result."""

        def matters(poisoned: Sequence[int]) -> bool:
            for byte in _POISONS:
                after = self._run(_poison(inputs, poisoned, byte))
                for at in changed:
                    written = ~unwritten[at] if at in poisoned else None
                    difference = _difference(first[at], after[at], written)
                    if difference is None or difference > 4 * (noises[at] or 0.0):
                        return True
            return False

        if not poisonable or not matters(poisonable):
            return set()
        if len(poisonable) == 1:
            return set(poisonable)
        return {at for at in poisonable if matters([at])} or set(poisonable)

    def _inputs(self, seed: int) -> Tensors:
        source = generator(seed, self._device)
        count = len(self._call.buffers)
        found = [
            make_tensor(self._call, at, self._contents, source, self._device) for at in range(count)
        ]
        for at in zeroed_buffers(self._call, self._configs.parts, self._call.zeroed):
            found[at].zero_()
        return found

    def _run(self, inputs: Tensors) -> Tensors:
        """The buffers after a launch on copies of them."""
        tensors = [tensor.clone() for tensor in inputs]
        assert self._call.default is not None
        arguments = arguments_of(self._call, tensors, self._placed)
        run(launch_of(self._call, self._configs, self._call.default, arguments))
        return tensors


def zeroed_buffers(call: Call, parts: AutotuneParts, hooked: Sequence[str]) -> list[int]:
    """The buffers that the library sets to zero before a launch. hooked: arguments that the hook of
    its config sets to zero."""
    names = [*parts.reset_to_zero, *hooked]
    views = [view for name in names for view in views_in(call.arguments.get(name))]
    return sorted({call.views[view].buffer for view in views})


def _poison(inputs: Tensors, poisoned: Sequence[int], byte: int) -> Tensors:
    found = list(inputs)
    for at in poisoned:
        found[at] = inputs[at].clone()
        _bytes(found[at]).fill_(byte)
    return found


def _is_poisonable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.element_size() < 4


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not bool((_bytes(one) == _bytes(other)).all())


def _find_changed(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Which elements differ in any bit, flat."""
    return (_bytes(one) != _bytes(other)).view(-1, one.element_size()).any(dim=1)


def _holding(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    """Which elements consist of a byte only, flat."""
    return (_bytes(tensor) == byte).view(-1, tensor.element_size()).all(dim=1)


def _difference(
    one: torch.Tensor, other: torch.Tensor, among: torch.Tensor | None = None
) -> float | None:
    """The norm of the difference relative to the norm, over some elements; None for NaN.

    Equal infinities do not differ."""
    import torch

    left, right = one.reshape(-1), other.reshape(-1)
    if among is not None:
        left, right = left[among], right[among]
    if torch.equal(_bytes(left), _bytes(right)):
        nan = left.is_floating_point() and bool(torch.isnan(left.float()).any())
        return None if nan else 0.0
    wide, against = left.double(), right.double()
    gap = torch.where(wide == against, 0.0, wide - against)
    norm = float(torch.linalg.vector_norm(wide[torch.isfinite(wide)]))
    difference = float(torch.linalg.vector_norm(gap)) / (norm or 1.0)
    return None if difference != difference else difference


def _scale(tensor: torch.Tensor) -> float:
    """The root mean square of the finite elements."""
    wide = tensor.double()
    finite = wide[wide.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
