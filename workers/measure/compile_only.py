"""Compile what `torch.compile` compiles, without launching the compiled code.

Dynamo and Inductor compile a function when it is first called. Here such a call ends before the
compiled code runs, so that all that is done is work of the processor. The compilation stays in
Dynamo's cache, and the next call launches it. Inductor's timing of kernels at a first launch is
left to that call.
"""

from __future__ import annotations

import contextvars
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, NoReturn

#: Below the thread that launches, which has 0, and above builders, because a confirmation may wait.
_NICE = 5


class NeedsCompilation(Exception):
    """A function cannot be called without compiling first."""


class _Launched(BaseException):
    """The call has reached the compiled code, or needs the device to compile."""


def import_compiler() -> bool:
    """Import Dynamo and Inductor, which takes seconds; true."""
    with warnings.catch_warnings():
        # Their own modules raise deprecation warnings on import.
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")
    return True


def compile_only(call: Callable[[], object]) -> bool:
    """Compile what the call needs; whether it was compiled and nothing was launched.

    False, with the work left to the next call, if this version of torch has no place to stop at, if
    the compilation needs the device, or if the call compiles nothing with Inductor. Raises what the
    compiler raises.
    """
    patches = _patches()
    if not patches:
        return False
    reached = ""
    with _patch(patches):
        try:
            call()
        except _Launched as launched:
            reached = str(launched)
    return reached == "compiled"


def in_background_thread(call: Callable[[], bool], cores: Set[int]) -> bool:
    """Call in a thread of low priority on these cores, and wait for it.

    A thread, because a process without privileges cannot raise its priority again. The thread has
    the caller's context variables, which hold settings of torch.
    """
    results: list[bool] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            if cores:
                os.sched_setaffinity(0, cores)
        except OSError:
            pass  # the container may have lost the cores since
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="compiler")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def without_compiling() -> Iterator[None]:
    """Raise NeedsCompilation where `torch.compile` would have to compile."""
    import torch

    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None:
        yield
        return
    try:
        with set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if "fail_on_recompile" not in f"{error}":
            raise
        raise NeedsCompilation from None


def _patches() -> list[tuple[type, str, str]]:
    """The methods to stop at: class, name and what has been reached there."""
    from torch._inductor import output_code
    from torch._inductor.runtime import benchmarking

    graph = getattr(output_code, "CompiledFxGraph", None)
    if graph is None or "__call__" not in vars(graph):
        return []
    timers = [
        (kind, "benchmark_gpu", "needs the device")
        for kind in vars(benchmarking).values()
        if isinstance(kind, type) and "benchmark_gpu" in vars(kind)
    ]
    return [(graph, "__call__", "compiled"), *timers]


@contextmanager
def _patch(patches: list[tuple[type, str, str]]) -> Iterator[None]:
    def stop(reached: str) -> Callable[..., NoReturn]:
        def method(*_: Any, **__: Any) -> NoReturn:
            raise _Launched(reached)

        return method

    originals = [(kind, name, vars(kind)[name]) for kind, name, _ in patches]
    for kind, name, reached in patches:
        setattr(kind, name, stop(reached))
    try:
        yield
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)
