"""Operators in models: in modules of known classes, or in place of torch's functions.

A patched module gets a subclass of its class, as FSDP2 gives it one: Dynamo, checkpointing, copies
and pickle treat it as any module, and nothing refers back to it that would keep its memory.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from search_spaces.errors import TunerError
from tuner.ops.choosing import ANY
from tuner.ops.first_calls import FirstCalls, is_captured
from tuner.ops.modules import KINDS, Gated, Kind, is_autocast
from tuner.ops.operator import version, watch_calls
from tuner.ops.problem import PLAIN
from tuner.ops.replacing import Replacing, numerics
from tuner.ops.usage import table_of

_Model = TypeVar("_Model", bound=nn.Module)
_MARK = "_tuner_patch"
#: Of a model that was patched for numerics: the hooks that ask for these.
_HOOKS = "_tuner_numerics"
#: Of a module, by key of a call: False where an operator runs, else the decisions by which its own
#: code does, as torch's function; and how many it knows at most.
_KNOWN, _MOST_KNOWN = "_tuner_calls", 64


@dataclass(frozen=True, slots=True)
class Replacement:
    """A module of a model that an operator can compute."""

    #: Its name in the model; empty for the model itself.
    name: str
    module: str
    operator: str
    #: Why it stays as it is; empty where the operator computes it.
    left: str = ""


class Replacements(tuple[Replacement, ...]):
    """What `patch` found in a model; as text a table with a row for each class."""

    __slots__ = ()

    def __str__(self) -> str:
        groups: dict[tuple[str, str, str], list[str]] = {}
        for each in self:
            groups.setdefault((each.left, each.module, each.operator), []).append(each.name)
        rows = [
            (module, f"{len(names)}", operator, f"left: {left}" if left else "replaced", names[0])
            for (left, module, operator), names in sorted(groups.items())
        ]
        return table_of([("module", "count", "operator", "", "first"), *rows])


def patch(model: nn.Module, numerics: str = ANY) -> Replacements:
    """Put operators into the modules of a model, in place; `unpatch` takes them out.

    Classes of torch, transformers and diffusers are known by name: norms, activations, gated and
    other layers, rotary embeddings and decoder layers. Parameters, their names and hooks stay;
    weights of layers that read one input get one storage. The first calls of each class are
    compared with its own code: where they differ by more than the tolerance of the dtype, that runs
    again, with a warning. Patch a model before its CUDA graphs are captured. A model that is
    patched already stays as it is, except that weights which were replaced meanwhile are joined.
    numerics: of each call of the model, as `ops.numerics` takes it; a compiled graph begins inside.
    """
    _check_module(model)
    _ask_for(model, numerics)
    found = []
    for name, module, kind, named in _list_known(model):
        left = "" if _is_patched(module) else _why_not(module, kind, named)
        if not left:
            _put_into(module, kind)
        found.append(Replacement(name, named.__name__, kind.operator, left))
    return Replacements(found)


def _ask_for(model: nn.Module, kind: str) -> None:
    """Let each call of a model run under these numerics."""
    for handle in vars(model).pop(_HOOKS, ()):
        handle.remove()
    if kind == ANY:
        return
    from tuner.ops.asked_numerics import Asking

    with numerics(kind):  # refuses another name
        asking = Asking(kind)
    before = model.register_forward_pre_hook(asking.enter)
    after = model.register_forward_hook(asking.leave, always_call=True)
    vars(model)[_HOOKS] = before, after


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        hint = "pass the module itself, such as pipeline.unet"
        raise TunerError(f"{model!r:.60} is no torch.nn.Module", hint)


def _list_known(model: nn.Module) -> Iterator[tuple[str, nn.Module, Kind, Any]]:
    """Modules of known classes by name, each with its kind and the class that is named there."""
    for name, module in model.named_modules():
        cls: Any = type(module)
        if (known := _kind_of(cls)) is not None:
            yield name, module, *known


def unpatch(model: _Model) -> _Model:
    """Take all operators out of a model again; returns it."""
    _check_module(model)
    _ask_for(model, ANY)
    for module in model.modules():
        if _is_patched(module):
            _take_out(module)
    return model


def _is_patched(module: nn.Module) -> bool:
    return hasattr(type(module), _MARK)


@cache
def _kind_of(cls: Any) -> tuple[Kind, Any] | None:
    """The kind of a class and the class that is named there, from which it may be derived."""
    for each in cls.__mro__:
        path = f"{each.__module__}.{each.__qualname__}"
        for kind in KINDS:
            if re.fullmatch(kind.classes, path):
                return kind, each
    return None


def _why_not(module: nn.Module, kind: Kind, named: Any) -> str:
    """Why a module stays as it is; empty where an operator computes it."""
    cls: Any = type(module)
    own = inspect.unwrap(cls.forward) is inspect.unwrap(named.forward)
    return kind.lacks(module) if own and "forward" not in vars(module) else "another forward"


def _put_into(module: nn.Module, kind: Kind) -> None:
    if not _is_patched(module):
        cls: Any = type(module)
        patched = _subclass(cls, kind)
        patched._tuner_first_calls.reset()
        module.__class__ = patched
    with torch.inference_mode(False), torch.no_grad():
        kind.prepare(module)


def _take_out(module: nn.Module) -> None:
    cls: Any = type(module)
    kind: Kind = getattr(cls, _MARK)
    module.__class__ = _without(cls)
    vars(module).pop(_KNOWN, None)
    with torch.inference_mode(False), torch.no_grad():
        kind.undo(module)


@cache
def _without(cls: Any) -> Any:
    """The class below a patched one, also where another library put a class on top of it."""
    if _MARK in vars(cls):
        return cls.__bases__[0]
    bases = tuple(_without(each) if hasattr(each, _MARK) else each for each in cls.__bases__)
    kept = {name: value for name, value in vars(cls).items()
            if name not in ("forward", "__dict__", "__weakref__")}  # fmt: skip
    return type(cls.__name__, bases, kept)


@cache
def _subclass(cls: Any, kind: Kind) -> Any:
    """A class that computes as the kind says; it has the name of the class."""
    check = FirstCalls(f"{kind.operator} in {cls.__name__}")
    forward = kind.forward(cls, check) if kind.forward else _forward(cls, kind, check)

    def reduce(self: Any, protocol: Any) -> Any:
        made: Any = super(patched, self).__reduce_ex__(max(int(protocol), 2))
        new, given, state, *others = made
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if name != _KNOWN}
        if type(self) is patched:
            new, given = _new, (cls,)
        return new, given, state, *others

    named = {each: getattr(cls, each) for each in ("__module__", "__qualname__", "__doc__")}
    parts = {
        "forward": wraps(cls.forward)(forward),
        "__reduce_ex__": reduce,
        _MARK: kind,
        "_tuner_first_calls": check,
    }
    patched: Any = type(cls.__name__, (cls,), named | parts)
    return patched


def _new(cls: Any) -> Any:
    """A copied or unpickled module, before it has its state."""
    known = _kind_of(cls)
    patched = _subclass(cls, known[0]) if known else cls
    return patched.__new__(patched)


def _forward(cls: Any, kind: Kind, check: FirstCalls) -> Callable[..., Any]:
    known, run = _kind_of(cls), kind.run
    assert known is not None
    assert run is not None
    torchs = known[1].__module__.startswith("torch.")

    def compare(self: Any, *given: Any, **named: Any) -> Any:
        usual = len(given) == 1 and not named and not check.wrong
        usual = usual and (torchs or not is_autocast())
        found = run(self, *given) if usual else NotImplemented
        if found is NotImplemented:
            return cls.forward(self, *given, **named)
        kept = check.keep(found, lambda: cls.forward(self, *given), given[0])
        if kept is not found:
            _take_out(self)
        return kept

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        key = None if len(given) != 1 or named or check.wrong else _key_of(given[0])
        if key is None:
            return compare(self, *given, **named)
        known: dict[Any, Any] = vars(self).setdefault(_KNOWN, {})
        aside = known.get(key)
        if aside is None:
            called = watch_calls()
            found = compare(self, *given)
            decisions = called()
            if not is_captured() and not any(each.waits for each in decisions):
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                own = torchs and all(each.run is None for each in decisions)
                known[key] = decisions if own else False
            return found
        if aside is False:
            found = run(self, *given)
            return cls.forward(self, *given) if found is NotImplemented else found
        for each in aside:
            each.calls += 1
        return cls.forward(self, *given)

    # What joins layers replaces more than calls of operators.
    return compare if isinstance(run, Gated) else forward


class PatchedModels:
    """Operators in these models while it is active; outside they are as they were."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models

    def __enter__(self) -> None:
        for each in self.models:
            patch(each)

    def __exit__(self, *error: object) -> None:
        for each in self.models:
            unpatch(each)


def watch_models(seen: Callable[[nn.Module], None]) -> RemovableHandle:
    """Be told of every model at its first call: a module that no other one called before."""
    known: WeakSet[nn.Module] = WeakSet()

    def look(module: nn.Module, given: Any) -> None:
        if not torch.compiler.is_compiling() and module not in known:
            known.update(module.modules())
            seen(module)

    return register_module_forward_pre_hook(look)


def find_models(call: Callable[[], object]) -> list[nn.Module]:
    """The models that a call runs, without those that are patched and those in which `patch` would
    replace nothing."""
    found: list[nn.Module] = []
    watch = watch_models(found.append)
    try:
        with torch.compiler.set_stance("force_eager"):
            call()
    finally:
        watch.remove()
    return [each for each in found if _is_worth_patching(each)]


def begin_replacing() -> None:
    """For the rest of this process, patch each model at its first call; until there is one, run
    operators in place of torch's functions in this thread."""
    functions = Replacing()
    functions.__enter__()  # type: ignore[no-untyped-call]

    def adopt(model: nn.Module) -> None:
        if _is_worth_patching(model):
            patch(model)
            functions.leave()

    watch_models(adopt)


def _key_of(given: Any) -> tuple[Any, ...] | None:
    """What decides, besides the parameters, whether a kernel serves a call in eager mode."""
    if type(given) not in PLAIN or torch.compiler.is_compiling() or is_autocast():
        return None
    return (
        given.shape, given.is_contiguous() or given.stride(), given.dtype, given.get_device(),
        given.data_ptr() & 15, given.requires_grad, torch.is_grad_enabled(), version(),
    )  # fmt: skip


def _is_worth_patching(model: nn.Module) -> bool:
    if any(map(_is_patched, model.modules())):
        return False
    return any(not _why_not(each, kind, named) for _, each, kind, named in _list_known(model))
