"""Ranks of a process group choose alike: what one of them tunes, all launch.

A choice has a name that is equal on all ranks: the kernel, its code, its configs, the card, and the
arguments that its tuning depends on. Ranks meet in the store of the process group, not in
collectives: a rank that never makes the launch keeps no other waiting. Times of configs are
written under the name, then the choice, and of several that are written the first holds for all
(compare and set). After `TUNER_RANKS_TIMEOUT_S` the choice is the default config, for all ranks.

Nothing is imported: without torch's process group there are no ranks.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ._device import current_device
from ._warn import warn_once

Made = TypeVar("Made")

#: How ranks share a miss: one times all configs, each times some, or none tunes.
MODE = "TUNER_RANKS"
_MODES = (BROADCAST, SHARE, TABLE_ONLY) = ("broadcast", "share", "table-only")
#: Seconds that a rank waits at most, three quarters of it for others, the rest for their store.
TIMEOUT = "TUNER_RANKS_TIMEOUT_S"
_TIMEOUT_S = 120.0
#: Between two questions: a wait in the store would keep its connection from all others.
_POLL_S = 0.01
#: Signs of life within the time that others wait.
_BEATS = 10
_DEFAULT = -1
_INFINITE = [math.inf] * 3


class Silent(Exception):
    """The others, or their store, did not answer in time."""


class Ranks:
    """The ranks of a process group, seen from one of them.

    store: of the group. A thread asks it, since a server that is stopped would stop the caller.
    """

    def __init__(self, group: Any, store: Any, rank: int) -> None:
        self.group, self.rank = group, rank
        self._store, self._silent = store, False
        self._calls: Counter[str] = Counter()
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="tuner ranks").start()

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            answers, method, given = asked
            try:
                answers.put((True, getattr(self._store, method)(*given)))
            except Exception as error:  # the store's own kinds of errors
                answers.put((False, error))

    def close(self) -> None:
        """End the thread."""
        self._asked.put(None)

    def ask(self, method: str, *given: Any) -> Any:
        """What a method of the store returns. Raises `Silent`, now and from then on."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if not self._silent:
            self._asked.put((answers, method, given))
            try:
                is_right, found = answers.get(timeout=read_timeout() / 4)
            except queue.Empty:
                is_right, found = False, "it does not answer"
            if is_right:
                return found
            self._silent = True
            warn_once(("ranks", id(self)), f"the store of the process group fails: {found}")
        raise Silent

    def settle(self, name: str, value: str) -> str:
        """The first value that any rank gave for a name."""
        found: bytes = self.ask("compare_set", name, "", value)
        return found.decode()

    def choose(self, name: str, count: int, measure: Callable[[int], float]) -> int:
        """The number of the config that all ranks launch, of `count`; 0 is the default.

        measure: the time of a config. What it raises is raised here, and the others get the
        default.
        """
        try:
            best = self._choose(name, count, measure)
        except Silent:
            best = _DEFAULT
        if best == _DEFAULT:
            text = f"ranks did not agree on {name.split('/')[0]} in time; launching the default"
            warn_once(("ranks", name), text)
        return max(best, 0)

    def _choose(self, name: str, count: int, measure: Callable[[int], float]) -> int:
        until_s = time.monotonic() + read_timeout() * 3 / 4
        chosen, shares = f"{name}/choice", read_mode() == SHARE
        times = shares or self.ask("add", f"{name}/owner", 1) == 1
        try:
            while times and (at := self.ask("add", f"{name}/next", 1) - 1) < count:
                self.ask("set", f"{name}/{at}", repr(measure(at)))
                if self.ask("check", [chosen]):
                    break
        except Silent:
            raise
        except BaseException:
            with suppress(Silent):
                self.settle(chosen, f"{_DEFAULT}")
            raise
        keys = [f"{name}/{at}" for at in range(count)]
        while not self.ask("check", [chosen]):
            if self.ask("check", keys):
                found = [float(self.ask("get", key)) for key in keys]
                self.settle(chosen, f"{found.index(min(found))}")
            elif time.monotonic() >= until_s:
                self.settle(chosen, f"{_DEFAULT}")
            else:
                time.sleep(_POLL_S)
        return int(self.ask("get", chosen))

    def compare(self, name: str, digest: str) -> None:
        """Log which rank has something else of this name than the first one that came here."""
        try:
            rank, _, first = self.settle(name, f"{self.rank} {digest}").partition(" ")
        except Silent:
            return
        if first != digest:
            text = f"{name}: rank {self.rank} has another table than rank {rank}"
            warn_once((name, id(self)), f"{text} ({digest[:12]}, {first[:12]}); they may disagree")

    def make_once(self, name: str, make: Callable[[], Made]) -> Made:
        """What the first rank makes that comes here for the nth time, on all ranks, pickled.

        Raises what it raised, and `Silent` where it gives no sign of life.
        """
        self._calls[name] += 1
        name = f"{name}/{self._calls[name]}"
        if self.ask("add", f"{name}/owner", 1) != 1:
            is_right, found = pickle.loads(self._await(name))
            if is_right:
                return found  # type: ignore[no-any-return]
            raise found
        done = threading.Event()
        beat = threading.Thread(target=self._beat, args=(name, done), daemon=True)
        beat.start()
        try:
            made = make()
        except BaseException as error:
            self._publish(name, (False, error))
            raise
        finally:
            done.set()
        self._publish(name, (True, made))
        return made

    def _publish(self, name: str, found: tuple[bool, Any]) -> None:
        self.ask("set", f"{name}/made", pickle.dumps(found))

    def _beat(self, name: str, done: threading.Event) -> None:
        try:
            while not done.wait(read_timeout() / _BEATS):
                self.ask("add", f"{name}/beat", 1)
        except Silent:
            pass

    def _await(self, name: str) -> bytes:
        until_s, beats = time.monotonic() + read_timeout(), 0
        while time.monotonic() < until_s:
            if self.ask("check", [f"{name}/made"]):
                made: bytes = self.ask("get", f"{name}/made")
                return made
            now = self.ask("add", f"{name}/beat", 0)
            if now > beats:
                until_s, beats = time.monotonic() + read_timeout(), now
            time.sleep(_POLL_S)
        raise Silent


_latest: list[Ranks] = []


def find_ranks() -> Ranks | None:
    """The ranks of torch's default process group; None without one, or where it has one rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD
    if _latest and _latest[0].group is group:
        return _latest[0]
    if distributed.get_world_size() < 2:
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError) as error:  # such as MPI's
        warn_once(("ranks", "store"), f"the process group has no store ({error}): ranks may differ")
        return None
    for former in _latest:
        former.close()
    _latest[:] = [Ranks(group, distributed.PrefixStore("tuner", store), distributed.get_rank())]
    return _latest[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_latest.clear)


def is_writer() -> bool:
    """Whether this process writes what all ranks would write: rank zero alone does."""
    return os.environ.get("RANK", "0") == "0"


def read_mode() -> str:
    """What `TUNER_RANKS` says; another word is logged once."""
    word = os.environ.get(MODE, BROADCAST)
    if word not in _MODES:
        warn_once((MODE, word), f"{MODE} is {word!r}, not one of {', '.join(_MODES)}: {BROADCAST}")
        return BROADCAST
    return word


def tunes_nothing() -> bool:
    """Whether a miss launches the default config, since ranks have tables only."""
    return read_mode() == TABLE_ONLY and find_ranks() is not None


def read_timeout() -> float:
    word = os.environ.get(TIMEOUT, "")
    try:
        found = float(word or _TIMEOUT_S)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        warn_once((TIMEOUT, word), f"{TIMEOUT} is {word!r}, no number of seconds: {_TIMEOUT_S:g}")
        return _TIMEOUT_S
    return found


def compare_tables(kernel: str, tables: Sequence[Any]) -> None:
    """Log where this rank has other tables of a kernel than the first rank that asks for them."""
    ranks = find_ranks()
    if ranks is not None:
        text = repr([(each.device, each.entries, each.rule, each.default) for each in tables])
        ranks.compare(f"kernel {kernel}", hashlib.sha256(text.encode()).hexdigest())


class AgreedTiming:
    """`_bench` of one of Triton's Autotuners: all ranks get the same config as the fastest.

    At the first config of a tuning, ranks agree; then that config takes no time, and the others
    never end. Without ranks, configs are timed as before.
    """

    def __init__(self, tuner: Any, ranks: Ranks, source: str) -> None:
        self._tuner, self.ranks, self._source = tuner, ranks, source
        self._time = tuner._bench
        self._chosen: dict[str, str] = {}

    def __call__(self, *args: Any, config: Any, **meta: Any) -> Any:
        if find_ranks() is not self.ranks:
            return self._time(*args, config=config, **meta)
        key = _format_key(self._tuner, meta)
        if key not in self._chosen:
            configs = self._tuner.prune_configs(meta)
            self._chosen[key] = str(configs[self._choose(key, configs, args, meta)])
        return [0.0, 0.0, 0.0] if str(config) == self._chosen[key] else _INFINITE

    def _choose(self, key: str, configs: Sequence[Any], args: Any, meta: Any) -> int:
        def measure(at: int) -> float:
            found = self._time(*args, config=configs[at], **meta)
            return float(found if isinstance(found, float | int) else found[0])

        text = "\n".join([self._source, f"{current_device()}", key, *map(str, configs)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        name = getattr(self._tuner.base_fn, "__name__", "kernel")
        return self.ranks.choose(f"{name}/{digest}", len(configs), measure)


def agree(tuner: Any, source: Callable[[], frozenset[str]]) -> None:
    """Let one of Triton's Autotuners choose as those of other ranks, before a launch that tunes.

    What it has chosen before there were ranks, or in another process, is forgotten. source: digests
    of the kernel's code.
    """
    ranks = find_ranks()
    timing = tuner.__dict__.get("_bench")
    if ranks is None or (isinstance(timing, AgreedTiming) and timing.ranks is ranks):
        return
    if isinstance(timing, AgreedTiming):
        del tuner.__dict__["_bench"]
    tuner._bench = AgreedTiming(tuner, ranks, " ".join(sorted(source())))
    tuner.cache_results = False
    tuner.cache.clear()


def _format_key(tuner: Any, keywords: dict[str, Any]) -> str:
    """What Triton tunes by: the arguments of `key`, and the dtypes of all."""
    given = {**tuner.nargs, **keywords}
    found = [given[name] for name in tuner.keys if name in given]
    shown = [each if isinstance(each, str | int | float | None) else type(each) for each in found]
    dtypes = [getattr(given[name], "dtype", None) for name in tuner.arg_names if name in given]
    return f"{shown} {dtypes}"
