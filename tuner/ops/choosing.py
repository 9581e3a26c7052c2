"""Which implementation a problem gets: a config of a table, a baseline that was faster, or torch.

The tables are those of `TUNER_TABLES`, then those of the package. An entry names what its
confirmation found fastest, for its workload or its range of sizes: the first table with one
decides. For others, what is fastest is predicted from the nearest entry of all tables
(`prediction.py`). A problem that no entry has anything to say of gets torch. What `torch.compile`
makes runs nowhere, since a call must not start a compiler: the fastest other implementation takes
its place.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import torch

from search_spaces import registry
from search_spaces.baselines import is_compiled
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Value
from tuner import runtime
from tuner.ops.prediction import device_of, find_neighbour, find_neighbours
from tuner.ops.problem import Problem

#: The config of an entry is launched. Other names are those of baselines.
TUNED = "tuned"
#: The plainest baseline, what torch's users write: an operator has it as a function of its own.
EAGER = "eager"
_COMPILED = "compile"
#: The entry that decided, by how it was found.
_ENTRIES = {"exact": "its entry", "range": "the entry of its range"}
#: Entries whose configs may stand in for one that is not compiled.
_MOST_SUBSTITUTES = 16
#: Whether the config of the nearest entry runs, however far this is.
_preferred = False
#: What bits of results depend on: anything, or of a row on that row alone.
ANY, BATCH_INVARIANT = "any", "batch_invariant"
_numerics = ANY
#: Kernels of which torch, too, computes each element of its own, whatever the others are.
_ELEMENTWISE = ("activation", "rotary", "embedding")


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation of a problem."""

    #: `tuned`, or the name of a baseline.
    implementation: str
    #: Why, in a clause.
    reason: str
    #: The kernel; None where nothing of it is needed.
    kernel: Kernel | None = None
    #: Of `tuned`: what is launched.
    config: Config | None = None
    #: The workload whose entry decided.
    entry: Mapping[str, Value] | None = None
    #: Time of the fastest baseline over that of the implementation, as confirmed; None if unknown.
    gain: float | None = None
    #: The same of `compile` alone, which no call runs.
    gain_over_compile: float | None = None
    #: Whether an entry names this workload or a range that holds it, or the kernel refuses it:
    #: there is nothing to tune.
    known: bool = False


def choose(problem: Problem, without: Collection[str] = ()) -> Choice:
    """The implementation for a problem on the current device; none of those that failed."""
    kernel = registry.load(problem.kernel)
    try:
        kernel.check_workload(problem.workload)
    except WorkloadError as error:
        return Choice(EAGER, error.message, known=True)
    # Correctness follows from the code that the tables ship with, whatever Triton compiles it;
    # `report` says what was found.
    tables = _list_tables(problem)
    if without and _numerics != ANY:
        tables = []  # nothing else that an entry names is known to give these bits
    for table in tables:
        hit = table.find(problem.key)
        if hit is not None and hit.entry is not None and hit.how in _ENTRIES:
            found = _choose_from(
                problem, hit.entry, f"fastest in {_ENTRIES[hit.how]}", 1.0, without
            )
            return replace(found, known=True)
    if _numerics != ANY:
        if problem.kernel not in _ELEMENTWISE:
            warn_of_torch(f"{problem.kernel} {problem.workload.key}")
        return Choice(EAGER, "no range of a batch-invariant table holds it")
    near = find_neighbour(tables, kernel, problem.workload, problem.key)
    if near is None:
        return Choice(EAGER, "no table serves it")
    where = f"predicted from an entry {near.distance:.1f} octaves away"
    return _choose_from(problem, near.entry, where, 1.0 if _preferred else near.loss, without)


def _list_tables(problem: Problem) -> list[runtime.Table]:
    """The tables that may decide: with the numerics asked for; else those of other ones last."""
    tables = runtime.find_tables(problem.kernel)
    if _numerics != ANY:
        return [table for table in tables if table.numerics == _numerics]
    return sorted(tables, key=lambda table: table.numerics != ANY)


def warn_of_torch(call: str) -> None:
    """Say of a call that torch runs it under numerics that it does not know."""
    if _numerics != ANY and not torch.compiler.is_compiling():
        warnings.warn(
            f"no range of a batch-invariant table holds {call}: torch's function runs, whose bits "
            "may depend on the batch",
            stacklevel=2,
        )


def list_substitutes(problem: Problem, choice: Choice) -> Iterator[Choice]:
    """With TUNER_COMPILE=never, other configs that are right for a problem that gets one: those of
    the nearest entries first, the default last."""
    kernel = choice.kernel
    if not runtime.never_compiles() or choice.implementation != TUNED or kernel is None:
        return
    if _numerics != ANY:
        return
    tables, seen = _list_tables(problem), [choice.config]
    near = find_neighbours(tables, kernel, problem.workload, problem.key)
    configs = [each.entry.config for each in islice(near, _MOST_SUBSTITUTES)]
    for config in [*configs, kernel.default_config(problem.workload, device_of(tables[0].device))]:
        if config not in seen:
            seen.append(config)
            yield replace(choice, config=config, known=False, reason="the next that is compiled")


def _choose_from(
    problem: Problem, entry: runtime.Entry, reason: str, loss: float, without: Collection[str]
) -> Choice:
    """The choice that an entry makes where its config may take `loss` times as long."""
    name, baselines = entry.implementation, entry.baselines
    if problem.in_parts and _COMPILED in baselines:
        name = EAGER if name == _COMPILED else name
        baselines = {**baselines, EAGER: min(baselines.get(EAGER, math.inf), baselines[_COMPILED])}
    name, gain = pick(name, baselines, without, loss)
    ratios = {**entry.baselines, TUNED: loss}
    known = {_COMPILED, name} <= ratios.keys()
    over_compile = ratios[_COMPILED] / ratios[name] if known else None
    if name == TUNED and loss > 1 and gain is not None:
        reason += f", at least {gain / loss:.2f}x"
    return Choice(
        name,
        f"next {reason}" if without else reason,
        registry.load(problem.kernel),
        entry.config if name == TUNED else None,
        entry.key,
        gain,
        over_compile,
    )


def numerics_of_calls() -> str:
    """What is asked for of the calls that are decided now."""
    return _numerics


def require(numerics: str) -> None:
    """Decide calls by tables of these numerics from now on."""
    global _numerics
    _numerics = numerics


@contextlib.contextmanager
def prefer_tuned() -> Iterator[None]:
    """Run the config of the nearest entry, however far this is, as for tests of small sizes.

    It holds for calls that are decided meanwhile; operators forget what they have decided.
    """
    global _preferred
    former, _preferred = _preferred, True
    try:
        yield
    finally:
        _preferred = former


def pick(
    implementation: str,
    baselines: Mapping[str, float],
    without: Collection[str] = (),
    loss: float = 1.0,
) -> tuple[str, float | None]:
    """The implementation that may run in a call, and its gain over the fastest baseline.

    implementation, baselines: of an entry; the time of each baseline over that of the entry's
    config. without: what failed. The fastest of the others replaces these and what is compiled.
    loss: of the config, whose time may be as many times that at the entry; the least time decides.
    """
    others = {name: ratio for name, ratio in baselines.items() if not is_compiled(name)}
    if is_compiled(implementation) or implementation in without or loss > 1:
        times = {name: r for name, r in {**others, TUNED: loss}.items() if name not in without}
        implementation = min(times, key=times.__getitem__, default=EAGER)
    if not others:
        return implementation, None
    return implementation, min(others.values()) / others.get(implementation, 1.0)
