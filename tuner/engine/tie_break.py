"""The choice among variants that tie with the fastest; it depends on nothing random."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tuner.engine.trial import Trial


def choose(
    equals: Sequence[Trial], indistinct: int, default: str, shared: Collection[str]
) -> tuple[Trial, str]:
    """The chosen trial, and why in words.

    The order of preference is: the default, a winner of neighbouring workloads, fewer registers,
    the first asked. equals: the winner of the race and all that certainly cost little more.
    indistinct: how many cannot be distinguished from the fastest. default, shared: config keys.
    """

    def rank(trial: Trial) -> tuple[bool, bool, int, int]:
        registers = trial.record.registers if trial.record else None
        return trial.key != default, trial.key not in shared, registers or 0, trial.number

    chosen = min(equals, key=rank)
    key = chosen.key
    if len(equals) == 1:
        by_estimate = f"fastest by estimate, of {indistinct} that cannot be distinguished"
        return chosen, "fastest beyond doubt" if indistinct == 1 else by_estimate
    if key == default:
        return chosen, f"the default ties with the fastest of {len(equals)}"
    if key in shared:
        return chosen, f"shared with neighbouring workloads, of {len(equals)} that tie"
    return chosen, f"fewest registers, then first asked, of {len(equals)} that tie"
