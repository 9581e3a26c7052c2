"""Ranks that are forked with torch and Triton loaded, launch kernels, and say what they chose.

Each round is a new process group of gloo, whose store a process of its own keeps, as `torchrun`
does. Reads a folder, a scenario, and numbers of ranks and rounds as JSON. Prints what each rank of
each round found, null for one that was killed, and what all of them have logged. Kernels run in
Triton's interpreter; times are random, others on each rank.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from spaces_forks import serve
from table_documents import document
from torch import distributed

import tuner
from tuner import runtime

BLOCKS = (16, 32, 64, 128)
#: A table for one size, in the working folder.
TABLE, TABLED = "double.json", (300, 64)
#: Launches that were timed on this rank.
timings: list[float] = []
#: What the first timing of a rank does.
faults: list[Callable[[], object]] = []


def time_at_random(call: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
    """In place of Triton's timing."""
    if faults:
        faults.pop()()
    call()
    timings.append(random.random())
    return [timings[-1]] * len(quantiles)


def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def make_kernel(autotune: Callable[..., Any]) -> Any:
    configs = [triton.Config({"BLOCK": block}) for block in BLOCKS]
    return autotune(configs, key=["n"], do_bench=time_at_random)(triton.jit(double))


def write_table() -> None:
    size, block = TABLED
    made = document(
        [({"n": size, "dtype": "float32"}, {"BLOCK": block})],
        kernel="double",
        kernel_hash=runtime.kernel_hash(triton.jit(double)),
        device=os.environ["TUNER_DEVICE"],
    )
    with open(TABLE, "w") as file:
        json.dump(made, file)


def launch(kernel: Any, n: int) -> dict[str, Any]:
    """The block that a launch takes, and whether its result is right."""
    x = torch.arange(n, dtype=torch.float32)
    y = torch.empty_like(x)
    try:
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"block": kernel.best_config.kwargs["BLOCK"], "right": bool((y == 2 * x).all())}


class Rank:
    """One rank. Scenarios are its methods; ranks launch in different orders."""

    def __init__(self, rank: int, ranks: int, port: int, keeper: int) -> None:
        random.seed(rank)
        self.rank, self.ranks, self.keeper = rank, ranks, keeper
        self.store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=300))

    def join(self, name: str = "group") -> None:
        store = distributed.PrefixStore(name, self.store)
        distributed.init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks)
        distributed.barrier()  # a rank may end before others have connected to it

    def launch_all(self, kernel: Any) -> dict[str, Any]:
        sizes = [99, 300] if self.rank % 2 else [300, 99]
        return {f"{n}": launch(kernel, n) for n in sizes} | {"timings": len(timings)}

    def decorated(self) -> Any:
        self.join()
        return self.launch_all(make_kernel(runtime.autotune))

    def joining_again(self) -> Any:
        """Groups one after the other in one process; what it chose in one is forgotten."""
        kernel, found = make_kernel(runtime.autotune), []
        for at in range(4):
            self.join(f"{at}")
            found.append(launch(kernel, 99)["block"])
            distributed.barrier()
            distributed.destroy_process_group()
        *former, _ = [each for each in threading.enumerate() if each.name == "tuner ranks"]
        for each in former:
            each.join()  # each was told to end: one that was not keeps this process for ever
        return {"blocks": found}

    def applied(self) -> Any:
        """A library's kernel; its first sizes were tuned before there was a group."""
        sys.modules["rank_library"] = library = type(sys)("rank_library")
        library.double = kernel = make_kernel(triton.autotune)
        before = launch(kernel, 99)
        tuner.apply({"rank_library:double": TABLE})
        self.join()
        return self.launch_all(kernel) | {"before": before}

    def differing(self) -> Any:
        """Some ranks have a table, others none."""
        os.environ["TUNER_TABLES"] = TABLE if self.rank % 2 else ""
        return self.decorated()

    def tune(self) -> Any:
        self.join()
        dims = {"rows": 512, "cols": 512, "dtype": "float32"}
        found = tuner.tune("cpu_pointwise", dims, budget=2, progress=False)
        return {"winner": str(found.winner), "us": found.median_us}

    def optimize(self) -> Any:
        self.join()
        try:
            tuner.optimize(lambda: None)
        except tuner.TunerError as error:
            return str(error)

    def silent(self) -> Any:
        """The process that keeps the store is stopped meanwhile."""
        self.join()
        for sent in (signal.SIGSTOP, signal.SIGCONT):
            distributed.barrier()
            if self.rank == 0:
                os.kill(self.keeper, sent)
            distributed.barrier()
            if sent is signal.SIGSTOP:
                found = self.launch_all(make_kernel(runtime.autotune))
        return found

    def killed(self) -> Any:
        return self._fail(lambda: os.kill(os.getpid(), signal.SIGKILL))

    def stopped(self) -> Any:
        """The parent lets it go on after the others."""
        return self._fail(lambda: os.kill(os.getpid(), signal.SIGSTOP))

    def slow(self) -> Any:
        return self._fail(self._await_others)

    def raising(self) -> Any:
        return self._fail(lambda: _raise("planted"))

    def _fail(self, fault: Callable[[], object]) -> Any:
        """Rank 0 begins to tune, and something happens to it; the others come afterwards."""
        self.join()
        if self.rank == 0:
            faults.append(lambda: (self.store.set("begun", "1"), fault()))
        else:
            self.store.wait(["begun"])
        kernel = make_kernel(runtime.autotune)
        found = launch(kernel, 99)
        self.store.set(f"done {self.rank}", "1")
        return {"99": found, "again": launch(kernel, 99)}

    def _await_others(self) -> None:
        self.store.wait([f"done {rank}" for rank in range(1, self.ranks)])


def _raise(text: str) -> None:
    raise RuntimeError(text)


def fork(run: Callable[[int], object]) -> tuple[int, int]:
    """A process that calls `run` with the end of a pipe; its number, and the other end."""
    reads, writes = os.pipe()
    child = os.fork()
    if child:
        os.close(writes)
        return child, reads
    try:
        os.close(reads)
        run(writes)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def keep_store(end: int) -> None:
    """The parent has no thread of the store: processes are forked from it."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(end, f"{store.port}".encode())
    signal.pause()


def read(process: int, end: int, scenario: str) -> Any:
    if scenario == "stopped":
        os.kill(process, signal.SIGCONT)
    with os.fdopen(end) as file:
        text = file.read()
    os.waitpid(process, 0)
    return json.loads(text) if text else None


def run_round(scenario: str, ranks: int) -> list[Any]:
    keeper, end = fork(keep_store)
    port = int(os.read(end, 16))

    def follow(rank: int, end: int) -> None:
        found = getattr(Rank(rank, ranks, port, keeper), scenario)()
        os.write(end, json.dumps(found).encode())

    started = [fork(partial(follow, rank)) for rank in range(ranks)]
    # Rank 0 is read last: where it is stopped, the others have ended by then.
    found = [read(*each, scenario) for each in reversed(started)]
    os.kill(keeper, signal.SIGKILL)
    read(keeper, end, "")
    return found[::-1]


def main() -> None:
    folder, scenario, ranks, rounds = json.load(sys.stdin)
    os.chdir(folder)
    write_table()
    found = [run_round(scenario, ranks) for _ in range(rounds)]
    print(json.dumps([found, os.pread(2, 1 << 20, 0).decode()]))


if __name__ == "__main__":
    serve(main)
