"""Hooks in the classes by which Triton launches kernels, while a recorder is active.

A launch passes through the `run` of every decorator around a kernel and of the kernel itself. The
outermost one is recorded; what it launches in turn (an autotuner's measurements, a pre_hook's
kernels) is part of it. The classes are those below Triton's `KernelInterface`, subclasses of
libraries and the runtime's decorator included.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tuner.runtime._import_watch import ImportWatch
from tuner.runtime._warn import warn_once


class LaunchRecorder(Protocol):
    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call `run(kernel, *args, **kwargs)`, record it and return its result.

        kwargs: the grid is among them.
        """
        ...


class _Thread(threading.local):
    inside = False


_lock = threading.RLock()
_thread = _Thread()
#: The recorders at work; replaced as a whole, so that launches of other threads see one or another.
_recorders: tuple[LaunchRecorder, ...] = ()
#: What was replaced: class, name and the original; a name that a class did not have has None.
_replaced: list[tuple[type, str, Any]] = []
#: The stance of torch's compiler while recorders work; it knows the one before.
_stance: Any = None


def begin(recorder: LaunchRecorder) -> None:
    """Let a recorder see all launches of this process."""
    global _recorders
    with _lock:
        if not _recorders:
            _install()
        _recorders = (*_recorders, recorder)


def end(recorder: LaunchRecorder) -> None:
    """Let a recorder see no more launches; with the last one the hooks are removed."""
    global _recorders
    with _lock:
        _recorders = tuple(other for other in _recorders if other is not recorder)
        if not _recorders:
            _remove()


def _install() -> None:
    from triton.runtime.jit import KernelInterface

    _import_interpreter()
    for cls in _launching_classes(KernelInterface):
        _hook(cls)

    def hook_later(cls: Any, /, **options: Any) -> None:
        super(KernelInterface, cls).__init_subclass__(**options)
        for base in cls.__mro__[: cls.__mro__.index(KernelInterface)]:
            _hook(base)

    _replaced.append((KernelInterface, "__init_subclass__", None))
    KernelInterface.__init_subclass__ = classmethod(hook_later)
    if _DYNAMO in sys.modules:
        _force_eager()
    else:
        _COMPILER.watch(frozenset([_DYNAMO]))


def _force_eager(*_: Any) -> None:
    """Run compiled functions eagerly, in all threads: they launch copies of kernels, without the
    arguments and the grid."""
    global _stance
    try:
        _stance = sys.modules["torch"].compiler.set_stance("force_eager")
    except Exception as error:  # within a compiled function, or of another version of torch
        text = f"kernels in code that torch has compiled are not recorded here ({error})"
        warn_once((_DYNAMO, type(error)), text)


_DYNAMO = "torch._dynamo"
_COMPILER = ImportWatch(_force_eager, lambda: None)


def _import_interpreter() -> None:
    """Import Triton's interpreter where it is in use, so that its class is among the subclasses."""
    if "triton.runtime.interpreter" not in sys.modules:
        from triton import knobs

        if knobs.runtime.interpret:
            import triton.runtime.interpreter  # noqa: F401


def _launching_classes(base: type) -> Iterator[type]:
    """The classes between every subclass and the base, the base excluded; each once."""
    seen: set[type] = set()
    waiting: list[type] = list(base.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        for each in cls.__mro__[: cls.__mro__.index(base)]:
            if each not in seen:
                seen.add(each)
                yield each


def _hook(cls: type) -> None:
    run, index = vars(cls).get("run"), vars(cls).get("__getitem__")
    if callable(run) and not hasattr(run, "tuner_original"):
        _replace(cls, "run", _recorded_run(run))
    if callable(index) and not hasattr(index, "tuner_original"):
        _replace(cls, "__getitem__", _recorded_index(index))


def _replace(cls: type, name: str, new: Any) -> None:
    _replaced.append((cls, name, vars(cls)[name]))
    new.tuner_original = vars(cls)[name]
    setattr(cls, name, new)


def _remove() -> None:
    global _stance
    _COMPILER.watch(frozenset())
    if _stance is not None:
        _stance.__exit__(None, None, None)
        _stance = None
    while _replaced:
        cls, name, original = _replaced.pop()
        if original is None:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


def _recorded_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorders, thread = _recorders, _thread
        if thread.inside or not recorders or kwargs.get("warmup") or "grid" not in kwargs:
            return original(self, *args, **kwargs)
        thread.inside = True
        try:
            if len(recorders) == 1:
                return recorders[0].launch(self, original, args, kwargs)
            return _around(recorders, original)(self, *args, **kwargs)
        finally:
            thread.inside = False

    return run


def _around(recorders: tuple[LaunchRecorder, ...], run: Callable[..., Any]) -> Callable[..., Any]:
    """A launch that several recorders see, each around the next."""
    for recorder in recorders:
        run = _one_around(recorder, run)
    return run


def _one_around(recorder: LaunchRecorder, run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kernel, *args, **kwargs: recorder.launch(kernel, run, args, kwargs)


def _recorded_index(original: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel[grid]` of a class whose launches do not pass through its own `run`."""

    @functools.wraps(original)
    def index(self: Any, grid: Any) -> Any:
        launcher = original(self, grid)
        if not callable(launcher):
            return launcher

        def run(kernel: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            return launcher(*args, **kwargs)

        def launch(*args: Any, **kwargs: Any) -> Any:
            recorders = _recorders
            if _thread.inside or not recorders or kwargs.get("warmup"):
                return launcher(*args, **kwargs)
            _thread.inside = True
            try:
                return _around(recorders, run)(self, *args, grid=grid, **kwargs)
            finally:
                _thread.inside = False

        return launch

    return index
