"""Which implementation a problem gets: a config of a table, a baseline that was faster, or torch.

The tables are those of `TUNER_TABLES`, then those of the package. An entry names what its
confirmation found fastest; between entries the nearest valid one decides. A problem without an
entry gets torch. What `torch.compile` makes runs nowhere, since a call must not start a compiler:
the fastest other implementation takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from search_spaces import registry
from search_spaces.baselines import is_compiled
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Value
from tuner import runtime
from tuner.ops.problem import Problem

#: The config of an entry is launched. Other names are those of baselines.
TUNED = "tuned"
#: The plainest baseline, what torch's users write: an operator has it as a function of its own.
EAGER = "eager"
_COMPILED = "compile"
#: The entry that decided, by how it was found.
_ENTRIES = {"exact": "its entry", "range": "the entry of its range"}
#: Octaves from a workload to an entry whose times say something of it.
FARTHEST = 2.0


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


def choose(problem: Problem, without: Collection[str] = ()) -> Choice:
    """The implementation for a problem on the current device; none of those that failed."""
    kernel = registry.load(problem.kernel)
    try:
        kernel.check_workload(problem.workload)
    except WorkloadError as error:
        return Choice(EAGER, error.message)
    # Correctness follows from the code that the tables ship with, whatever Triton compiles it;
    # `report` says what was found.
    hit = runtime.lookup(problem.kernel, problem.key, device="nearest", stale="use", quiet=True)
    if hit is None or hit.entry is None:
        return Choice(EAGER, "no table serves it")
    if hit.distance > FARTHEST:
        return Choice(EAGER, f"the nearest entry is {hit.distance:.1f} octaves away")
    name, gain = pick(hit.entry.implementation, hit.entry.baselines, without)
    which = _ENTRIES.get(hit.how, "the nearest entry")
    reason = f"{'next ' if without else ''}fastest in {which}"
    config = hit.config if name == TUNED else None
    ratios = {TUNED: 1.0, **hit.entry.baselines}
    known = {_COMPILED, name} <= ratios.keys()
    over_compile = ratios[_COMPILED] / ratios[name] if known else None
    return Choice(name, reason, kernel, config, hit.entry.key, gain, over_compile)


def pick(
    implementation: str, baselines: Mapping[str, float], without: Collection[str] = ()
) -> tuple[str, float | None]:
    """The implementation that may run in a call, and its gain over the fastest baseline.

    implementation, baselines: of an entry; the time of each baseline over that of the entry's
    config. without: what failed. The fastest of the others replaces these and what is compiled.
    """
    others = {name: ratio for name, ratio in baselines.items() if not is_compiled(name)}
    if is_compiled(implementation) or implementation in without:
        times = {name: r for name, r in {TUNED: 1.0, **others}.items() if name not in without}
        implementation = min(times, key=times.__getitem__, default=EAGER)
    if not others:
        return implementation, None
    return implementation, min(others.values()) / others.get(implementation, 1.0)
