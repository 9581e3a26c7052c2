"""The recorder behind `tuner.capture()`: one record per distinct specialised launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from search_spaces.adoption.autotuned import AutotuneParts, take_apart, under_autotuner
from search_spaces.errors import TunerError
from search_spaces.records import Config, Value, canonical_json
from search_spaces.source_positions import one_line
from tuner.capturing.arguments import Uncapturable, encode, is_infinite
from tuner.capturing.call_records import Call, Grid
from tuner.capturing.contents import Contents
from tuner.capturing.data_flow import free_scalars
from tuner.capturing.grids import tabulate
from tuner.capturing.known_launches import Known, KnownLaunches
from tuner.capturing.places import NoPlace, base_of, place_of
from tuner.capturing.snapshot import Snapshot
from tuner.capturing.sorting import sort_call
from tuner.capturing.specialization import code_of, key_of
from tuner.runtime._arguments import defaults_of

#: The most distinct launches of one kernel, and of all kernels, that are recorded.
MOST_PER_KERNEL = 64
MOST_CALLS = 2048


class Recorder:
    """Records the launches of all threads while its hooks are active. It never raises."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        #: Launches of further kinds that are not recorded, by kernel.
        self.dropped: dict[str, int] = {}
        self._kernels: dict[int, KnownLaunches] = {}
        self._all: list[Known] = []
        self._lock = threading.Lock()

    def calls(self) -> Iterator[Call]:
        """The records, in the order of their first launches."""
        for known in list(self._all):
            with self._lock:
                count = known.launches()
            yield replace(known.call, count=count, gpu_us=known.time.total_us(count))

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a launch and record it."""
        # This adds to every launch, so it is written for speed.
        launches = self._kernels.get(id(kernel))
        if launches is None:
            return self._first(kernel, run, args, kwargs, _key(args, kwargs))
        try:
            match, known = launches.latest
            if not match(args, kwargs):
                known = launches.find(args, kwargs)
        except Exception:  # such as an argument of another kind than the matcher's
            known = None
        if known is None:
            return self._run_unmatched(launches, run, args, kwargs)
        known.count()
        if known.time.complete:
            return run(kernel, *args, **kwargs)
        return known.time.time_launch(lambda: run(kernel, *args, **kwargs))

    def _run_unmatched(
        self,
        launches: KnownLaunches,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A launch that no matcher accepts; its key decides whether it is known."""
        kernel = launches.kernel
        if not self._room(kernel) and launches.is_new(args, kwargs):
            self._drop(kernel)
            return run(kernel, *args, **kwargs)
        key = _key(args, kwargs)
        known = launches.by_key.get(key)
        if known is None:
            return self._first(kernel, run, args, kwargs, key)
        known.count()
        with self._lock:
            launches.add(args, kwargs, known)
        return run(kernel, *args, **kwargs)

    def _first(
        self,
        kernel: Any,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Any,
    ) -> Any:
        if not self._room(kernel):
            self._drop(kernel)
            return run(kernel, *args, **kwargs)
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        call = _record(kernel, kwargs["grid"], args, given, self.contents)
        try:
            result = run(kernel, *args, **kwargs)
        except BaseException as error:
            call = call.with_problem(_launch_problem(call, error))
            self._add(kernel, args, kwargs, key, call)
            raise
        self._add(kernel, args, kwargs, key, _complete_record(call, kernel, result))
        return result

    def _room(self, kernel: Any) -> bool:
        """Whether a further kind of launch of this kernel can be recorded."""
        launches = self._kernels.get(id(kernel))
        kinds = 0 if launches is None else len(launches.by_key)
        return kinds < MOST_PER_KERNEL and len(self._all) < MOST_CALLS

    def _drop(self, kernel: Any) -> None:
        name = name_of(kernel)
        with self._lock:
            self.dropped[name] = self.dropped.get(name, 0) + 1

    def _add(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any, call: Call
    ) -> None:
        with self._lock:
            launches = self._kernels.get(id(kernel))
            if launches is None:
                launches = self._kernels[id(kernel)] = KnownLaunches(kernel)
            known = launches.by_key.get(key)
            if known is None:
                # Not the grid itself, whose variables may be tensors.
                known = launches.by_key[key] = Known(call, code_of(kwargs["grid"]))
                self._all.append(known)
            known.count()
            if key is not None:
                launches.add(args, kwargs, known)


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of a launch; None, for all alike, where an argument has none."""
    try:
        return key_of(args, kwargs)
    except Exception:  # such as an argument without a hash
        return None


def name_of(kernel: Any) -> str:
    base = base_of(kernel)
    return f"{getattr(base, '__name__', type(kernel).__name__)}"


def _record(
    kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], contents: Contents
) -> Call:
    """The record of a launch before it runs; its problem says why it cannot be tuned."""
    name = name_of(kernel)
    empty = Call(name, "", decorators_of(kernel), {}, (), {}, (), (), Grid(()))
    try:
        empty = replace(empty, place=place_of(kernel))
        if not hasattr(kernel, "arg_names"):
            raise Uncapturable(f"{type(kernel).__name__} around it is no decorator of Triton")
        _refuse_own_tuner(kernel, empty.place)
        return _bind(empty, kernel, grid, args, kwargs, contents)
    except (NoPlace, Uncapturable) as problem:
        return empty.with_problem(f"{problem}")
    except TunerError as problem:
        return empty.with_problem(problem.message)
    except Exception as problem:
        return empty.with_problem(f"recording it fails with {one_line(problem)}")


def _bind(
    call: Call,
    kernel: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    contents: Contents,
) -> Call:
    names = list(kernel.arg_names)
    passed = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments = {name: value for name, value in passed.items() if name in names}
    options: dict[str, Value] = {}
    for name, value in passed.items():
        if name not in names:
            if not isinstance(value, bool | int | float | str | None) or is_infinite(value):
                raise Uncapturable(f"its option {name} is {value!r:.80}, which has no record")
            options[name] = value
    snapshot = Snapshot()
    encoded = {name: encode(name, value, snapshot.add) for name, value in arguments.items()}
    keywords = tuple(name for name in kwargs if name in names)
    call = replace(call, arguments=encoded, keywords=keywords, options=options)
    parts = parts_of(kernel, call)
    with suppress(TunerError):  # A pruner that raises here raises in the launch, too.
        parts = parts.apply_pruner(arguments, grid)
    table = tabulate(grid, parts, arguments, defaults_of(parts.fn.fn))
    buffers, views = snapshot.take(contents)
    configs = len(parts.tuner.configs) if "autotune" in call.decorators else 0
    return replace(call, buffers=buffers, views=views, grid=table, configs=configs)


def parts_of(kernel: Any, *calls: Call) -> AutotuneParts:
    """A launched kernel taken apart; one without an autotuner has the options of the calls as its
    configs."""
    name = calls[0].kernel
    if "autotune" not in calls[0].decorators:
        import triton

        configs: dict[str, Any] = {}
        for call in calls:
            options = {name: call.options[name] for name in _IN_CONFIG if name in call.options}
            configs.setdefault(canonical_json(options), triton.Config({}, **options))
        kernel = under_autotuner(kernel, list(configs.values()), (), name)
    return take_apart(kernel, name, calls[0].keywords, hooks=True)


#: Compiler options that a `triton.Config` has.
_IN_CONFIG = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def decorators_of(kernel: Any) -> tuple[str, ...]:
    """The decorators of Triton around a function, outermost first."""
    found = []
    while hasattr(kernel, "fn"):
        if hasattr(kernel, "configs") and hasattr(kernel, "keys"):
            found.append("autotune")
        elif isinstance(getattr(kernel, "values", None), dict):
            found.append("heuristics")
        kernel = kernel.fn
    return tuple(found)


def _refuse_own_tuner(kernel: Any, place: str) -> None:
    """Raise `Uncapturable` for a decorator with configs that is no autotuner of Triton's kind."""
    below = place.replace(":", ".")
    while hasattr(kernel, "fn"):
        kind, below = type(kernel), f"{below}.fn"
        if hasattr(kernel, "configs") and not hasattr(kernel, "keys"):
            raise Uncapturable(
                f"{kind.__module__}.{kind.__qualname__}, which chooses its configs, is no "
                f"autotuner of Triton; launch the function below it, `{below}[grid](...)`, with "
                "the values of a config"
            )
        kernel = kernel.fn


def _launch_problem(call: Call, error: BaseException) -> str:
    """Why a call without a result cannot be tuned."""
    import torch

    if type(error).__name__ == "InterpreterError":
        return (
            f"its launch raises {one_line(error)} in Triton's interpreter, which lacks some "
            "operations; if a GPU runs it, capture it there"
        )
    if call.configs > 1 and not torch.cuda.is_available():
        return (
            f"@triton.autotune times its {call.configs} configs on a GPU, and there is none here "
            f"({one_line(error)}); capture it on a machine with a GPU"
        )
    return f"its launch raises {one_line(error)}"


def _complete_record(call: Call, kernel: Any, compiled: Any) -> Call:
    """The record after the launch, with the config that the library chose and, where the launch
    has compiled it, its free arguments."""
    if call.problem:
        return call
    try:
        parts = parts_of(kernel, call)
        config: Config = parts.configs[0]
        best = getattr(parts.tuner, "best_config", None)
        if "autotune" in call.decorators and best is not None:
            config = parts.plain(best)
        sizes = call.grid.of(parts.launch_values(config)) or call.grid.sizes
        call = replace(call, default=config, grid=replace(call.grid, sizes=sizes))
        text = getattr(compiled, "asm", {}).get("ttir")
        return sort_call(call, parts, lambda: free_scalars(text)) if text else call
    except Exception as problem:
        return call.with_problem(f"its config is unknown: {one_line(problem)}")
