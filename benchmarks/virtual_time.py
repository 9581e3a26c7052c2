"""The engine on a virtual pool: one loop without a driver or a database."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engine import Build, Engine, Instruction, Measure, Tick
from workers.pools.virtual import VirtualPool


def instructions(engine: Engine, pool: VirtualPool) -> Iterator[Instruction]:
    """All instructions of the engine until it finishes. The pool carries out builds and jobs.

    An instruction is yielded before the pool carries it out.
    """
    pool.start()
    while not engine.finished:
        for event in pool.poll(0.0 if engine.builds_deferred else 0.1) or (Tick(),):
            for instruction in engine.handle(event, pool.clock()):
                yield instruction
                if isinstance(instruction, Build):
                    pool.submit_build(instruction.job)
                elif isinstance(instruction, Measure):
                    pool.submit_measure(instruction.worker_id, instruction.job)
