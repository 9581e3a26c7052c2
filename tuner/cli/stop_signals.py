"""What the signals that stop a command do: drain, then kill."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from tuner.cli.console import note

#: Seconds after the second signal in which a command stops by itself.
PATIENCE_S = 10.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Seconds after a signal at which the main thread is woken.
_WAKING_S = (0.05, 1.0)


class Stoppable(Protocol):
    def drain(self) -> None: ...

    def kill(self) -> None: ...


@contextmanager
def interruptible(control: Stoppable) -> Iterator[None]:
    """The first SIGINT or SIGTERM drains, the second kills, a third has its usual effect.

    SIGHUP drains as well and counts once, since a closing terminal may send it twice. It stays
    ignored where it was ignored before, as under `nohup`.

    A separate thread prints the note and calls the control: the signal may interrupt the main
    thread while it prints or holds the lock that the control needs. A thread that waits for a
    database or a strategy does not see the control: PATIENCE_S after the second signal it gets
    SIGINT with its usual effect.
    """
    received = 0
    impatience = threading.Timer(PATIENCE_S, _interrupt)
    impatience.daemon = True
    previous = {number: signal.getsignal(number) for number in _STOPPING}
    if previous[signal.SIGHUP] == signal.SIG_IGN:
        del previous[signal.SIGHUP]

    def request(text: str, action: Callable[[], None]) -> None:
        def carry_out() -> None:
            try:
                note(text)
            finally:
                action()

        threading.Thread(target=carry_out, daemon=True).start()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if number == signal.SIGHUP and received:
            return
        received += 1
        if received == 1:
            request("finishing the jobs in flight; once more to stop at once", control.drain)
        else:
            request("stopping", control.kill)
            for each, handler in previous.items():
                # A shell starts what runs in its background with SIGINT ignored.
                ignored = each == signal.SIGINT and handler == signal.SIG_IGN
                signal.signal(each, signal.default_int_handler if ignored else handler)
            impatience.start()

    for number in previous:
        signal.signal(number, handle)
    try:
        with _waking_main_thread():
            yield
    finally:
        impatience.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _waking_main_thread() -> Iterator[None]:
    """Wake the main thread after each signal, so that the signal's handler runs.

    A signal that comes just before a wait begins, or that another thread receives, does not
    interrupt the wait: its handler would run when what is waited for has come. SIGURG, which is
    ignored otherwise, interrupts it.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def wake() -> None:
        with receiver:
            while received := receiver.recv(1):
                if received[0] != signal.SIGURG:
                    for delay_s in _WAKING_S:
                        time.sleep(delay_s)
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    ignoring = signal.signal(signal.SIGURG, lambda number, frame: None)
    others = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=wake, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(others)
        sender.shutdown(socket.SHUT_RDWR)
        sender.close()
        signal.signal(signal.SIGURG, ignoring)


def _interrupt() -> None:
    note(f"it has not stopped in {PATIENCE_S:g} s: interrupting what it waits for")
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
