"""What the two sides of a supervised process send each other, and over which descriptors.

    order         parent -> fork server   socket: length, pickled order, and its descriptors; the
                                          first one is what the server loads, a `Preload`
    loaded        fork server -> parent   the same socket: `LOADED`, once
    request       parent -> worker        pipe: length, pickle; the first one is the setup
    heartbeat     worker -> parent        pipe: length, `HEARTBEAT`, UTF-8 text
    alone         worker -> parent        the same pipe: length, `ALONE`; the parent answers with an
                                          empty request once the worker has the processors alone
    reply         worker -> parent        the same pipe: length, `REPLY`, pickle
    exit status   reaper -> parent        pipe: one `EXIT_STATUS`; of a branch its server sends it
    lifeline      parent -> reaper        pipe that carries nothing; its end of file means "kill"
    output        all children -> parent  pipe with stdout and stderr

Lengths are 8 bytes, big-endian, and count what follows. A fork server carries its orders out one
after the other. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from typing import Any, BinaryIO, TypedDict, final

LENGTH_BYTES = 8
#: The most descriptors of an order: those of a fork are requests, replies, lifeline, output and
#: exit status, those of a branch control socket, output and exit status.
DESCRIPTORS = 5
#: A fork server's answer to its `Preload`.
LOADED = b"r"
#: Kinds of messages on the reply pipe.
HEARTBEAT, ALONE, REPLY = b"h", b"a", b"r"
#: The worker's exit code; minus the signal's number where a signal ended it.
EXIT_STATUS = struct.Struct("=i")


@final
class BranchOrder(TypedDict):
    """A fork of the server that is a fork server itself."""

    #: The name that `ps` shows.
    branch: str


@final
class ForkOrder(TypedDict):
    """What a fork server is asked to start."""

    #: The private folder, which the reaper makes and removes.
    scratch: str
    #: The name that `ps` shows.
    name: str
    #: Changes of the environment; None unsets a variable.
    environment: dict[str, str | None]


Order = BranchOrder | ForkOrder


class Setup(TypedDict):
    """The first request to a worker: the object to create and where to find it."""

    #: `module:callable`.
    factory: str
    kwargs: dict[str, Any]
    #: Import paths, appended to the worker's own.
    paths: list[str]
    #: Added to the niceness of the process.
    nice: int
    #: The processors it may use; empty for those of the parent.
    cores: frozenset[int]


def frame(body: bytes) -> bytes:
    """The body with its length in front."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length_of(header: bytes) -> int:
    """The length that a header announces."""
    return int.from_bytes(header, "big")


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next message; None at the end of file."""
    header = stream.read(LENGTH_BYTES)
    return stream.read(length_of(header)) if len(header) == LENGTH_BYTES else None


def write_frame(stream: BinaryIO, kind: bytes, body: bytes) -> None:
    """Send a message of a kind."""
    stream.write(frame(kind + body))
    stream.flush()


# -- the system calls of the child side: death signals, subreapers, names, wake-ups by SIGCHLD -----
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, detached ones included."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """The name of the process in `ps` and `top`, cut to 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def wake_on_child_exit() -> tuple[int, int]:
    """The two ends of a pipe that becomes readable when a child of this process ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


def _prctl(option: int, value: int | bytes) -> None:
    """Linux's prctl. Other systems have none; there the reaper alone does the work."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
