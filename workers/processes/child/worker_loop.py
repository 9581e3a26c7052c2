"""The worker: creates the caller's object and answers requests until the requests end."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from search_spaces import log_file
from tuner.base import tracing
from workers.processes import heartbeat
from workers.processes.child.messages import (
    ALONE,
    HEARTBEAT,
    REPLY,
    Setup,
    die_with_parent,
    read_frame,
    set_name,
    write_frame,
)


def work(requests: int, replies: int, reaper: int, name: str) -> None:
    """Serve requests until their pipe ends.

    requests, replies: descriptors. reaper: the process id of the parent, without which the worker
    does not start.
    """
    die_with_parent()
    if os.getppid() != reaper:
        return
    # A group of its own, with its helpers: it can be stopped while its reaper watches.
    os.setpgid(0, 0)
    set_name(name)
    log_file.join(name)
    tracing.join(name)
    faulthandler.enable()
    _serve(os.fdopen(requests, "rb"), os.fdopen(replies, "wb"))
    sys.stdout.flush()
    sys.stderr.flush()


def append_paths(paths: Sequence[str]) -> None:
    """Append import paths after the present ones, so that a user's `random.py` hides no library."""
    sys.path += [path for path in dict.fromkeys(paths) if path and path not in sys.path]


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until end of file: the first creates the object, the others call it."""
    target: Any = None

    def create(body: bytes) -> int:
        nonlocal target
        target = _create(pickle.loads(body))
        return os.getpid()

    def call(body: bytes) -> Any:
        method, args = pickle.loads(body)
        return getattr(target, method)(*args)

    def send(activity: str) -> None:
        write_frame(replies, HEARTBEAT, activity.encode(errors="replace"))

    def ask() -> None:
        write_frame(replies, ALONE, b"")
        read_frame(requests)

    handle: Callable[[bytes], Any] = create
    while (body := read_frame(requests)) is not None:
        with heartbeat.sent_by(send, ask):
            answer = _answer(handle, body)
        write_frame(replies, REPLY, answer)
        handle = call
    if hasattr(target, "close"):
        target.close()


def _create(setup: Setup) -> Any:
    append_paths(setup["paths"])
    os.nice(setup["nice"])
    if setup["cores"]:
        with suppress(OSError):  # the container may have lost them since
            os.sched_setaffinity(0, setup["cores"])
    module, _, name = setup["factory"].partition(":")
    return getattr(importlib.import_module(module), name)(**setup["kwargs"])


def _answer(handle: Callable[[bytes], Any], body: bytes) -> bytes:
    try:
        return pickle.dumps(("result", handle(body)))
    except Exception as error:
        return _pickled_error(error)


def _pickled_error(error: Exception) -> bytes:
    """An error reply: the exception where it can be pickled, and in any case its text."""
    text = "".join(traceback.format_exception(error))
    # Frames would keep alive what they hold, such as tensors.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        portable: bytes | None = pickle.dumps(error)
        pickle.loads(portable)  # type: ignore[arg-type]
    except Exception:
        portable = None
    return pickle.dumps(("error", portable, type(error).__name__, _message(error), text))


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} without a readable message>"
