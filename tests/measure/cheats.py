"""Planted cheats: variants that look fast and are wrong, each with the reason of its refusal.

Every cheat multiplies two square float32 matrices, y = x @ w, or pretends to. A *writing* variant
writes to y, like a Triton launch; a *returning* one returns y, like a function compiled for a CPU.
Tests and benchmarks run all of `CHEATS`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.records import TensorSpec, Workload


@dataclass(frozen=True, slots=True)
class Cheat:
    """One cheat and how it can be run."""

    name: str
    #: A regular expression that its refusal matches.
    reason: str
    #: Whether it exists as a writing variant.
    writes: bool = True
    #: Whether it exists as a returning variant.
    returns: bool = True
    #: Whether it needs a CUDA device.
    cuda: bool = False
    #: Whether only the check of a timed run can find it.
    timed: bool = False
    #: Dimensions of its workload.
    dims: tuple[tuple[str, object], ...] = ()

    @property
    def config(self) -> dict[str, str]:
        return {"cheat": self.name}

    def workload(self, n: int) -> Workload:
        return Workload.of(n=n, dtype="float32").with_dims(**dict(self.dims))


CHEATS = (
    Cheat("partial write", r"output `y` not written: \d+ of|relative error"),
    Cheat("stale output", r"output `y` not written|relative error"),
    Cheat("input mutation", r"input `x` was modified"),
    Cheat("constant output", r"the outputs do not follow the inputs"),
    Cheat("result cache by pointer", r"the outputs do not follow the inputs"),
    Cheat("result cache by content", r"keeps results: .* us on inputs it has seen"),
    Cheat("side stream", r"work on another stream", returns=False, cuda=True),
    Cheat("lazy subclass", r"output `y` is a Lazy, not a plain torch.Tensor"),
    Cheat("patched elapsed_time", r"changed torch\.cuda\.streams\.Event\.elapsed_time"),
    Cheat("thread", r"left 1 thread\(s\) running"),
    Cheat("NaN against NaN", r"cannot match: \d+ NaN", dims=(("nan", True),)),
    Cheat("out of bounds by 16 bytes", r"wrote outside `y`: guard band after", returns=False),
    Cheat("float16 accumulation", r"relative error \S+ of `y` over 1e-05"),
    Cheat("persisting L2 window", r"reserved \d+ bytes of L2", returns=False, cuda=True),
    # Beyond the fourteen: clocks of the host, and variants that are honest only in the gate.
    Cheat("patched perf_counter_ns", r"changed time\.perf_counter_ns"),
    Cheat("idle once checked", r"output `y` not|faster than", returns=False, timed=True),
    Cheat("wrong once checked", r"wrong in the timed loop: relative error", timed=True),
)
HONEST = {"cheat": ""}
#: Runs of the gate, which a variant counts that is honest only there.
_GATE_RUNS = 3


class Lazy(torch.Tensor):
    """Does the work when it is first used."""

    work: Callable[[torch.Tensor], None] | None = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        for item in args:
            if isinstance(item, Lazy) and item.__dict__.get("work"):
                item.__dict__.pop("work")(item.as_subclass(torch.Tensor))
        return super().__torch_function__(function, types, args, kwargs or {})


class Play:
    """One cheat as a function of x, w and y that counts its calls and may keep results."""

    def __init__(self, name: str) -> None:
        self._play = getattr(self, "_" + name.lower().replace(" ", "_"), self._honest)
        assert not name or self._play != self._honest, name
        self._kept: dict[object, torch.Tensor] = {}
        self._calls = 0

    def __getitem__(self, grid):
        return self

    def __call__(self, x, w, y):
        self._calls += 1
        self._play(x, w, y)

    def _honest(self, x, w, y):
        torch.mm(x, w, out=y)

    def _partial_write(self, x, w, y):
        y[:-1].copy_(torch.mm(x, w)[:-1])

    def _stale_output(self, x, w, y):
        """Leave the output unwritten."""

    def _input_mutation(self, x, w, y):
        self._honest(x, w, y)
        x[0].mul_(2)

    def _constant_output(self, x, w, y):
        y.fill_(0.25)

    def _result_cache_by_pointer(self, x, w, y):
        self._from_cache((x.data_ptr(), w.data_ptr()), x, w, y)

    def _result_cache_by_content(self, x, w, y):
        self._from_cache((*x[0, :8].tolist(), *w[0, :8].tolist()), x, w, y)

    def _from_cache(self, key, x, w, y):
        if key not in self._kept:
            self._kept[key] = torch.mm(x, w)
        y.copy_(self._kept[key])

    def _side_stream(self, x, w, y):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._honest(x, w, y)

    def _lazy_subclass(self, x, w, y):
        y.__class__ = Lazy
        y.work = lambda out: torch.mm(x, w, out=out)

    def _patched_elapsed_time(self, x, w, y):
        torch.cuda.Event.elapsed_time = lambda self, other: 0.001
        self._honest(x, w, y)

    def _patched_perf_counter_ns(self, x, w, y):
        time.perf_counter_ns = lambda: 0
        self._honest(x, w, y)

    def _thread(self, x, w, y):
        def work():
            time.sleep(0.2)
            self._honest(x, w, y)

        threading.Thread(target=work).start()

    def _nan_against_nan(self, x, w, y):
        y.fill_(float("nan"))

    def _out_of_bounds_by_16_bytes(self, x, w, y):
        self._honest(x, w, y)
        y.as_strided((y.numel() + 4,), (1,), y.storage_offset())[-4:].fill_(1.0)

    def _float16_accumulation(self, x, w, y):
        total = torch.zeros(y.shape, dtype=torch.float16, device=y.device)
        for a, b in zip(x.half().split(64, dim=1), w.half().split(64, dim=0), strict=True):
            total += a @ b
        y.copy_(total)

    def _persisting_l2_window(self, x, w, y):
        refused = ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(0x06, ctypes.c_size_t(8 << 20))
        if refused:
            raise RuntimeError(f"this device has no such limit (CUDA error {refused})")
        self._honest(x, w, y)

    def _idle_once_checked(self, x, w, y):
        if self._calls <= _GATE_RUNS:
            self._honest(x, w, y)

    def _wrong_once_checked(self, x, w, y):
        self._honest(x, w, y)
        # The CPU backend runs a variant once more to load it.
        if self._calls > _GATE_RUNS + 1:
            y.add_(1)


class Cheated(Kernel):
    """y = x @ w; configs: cheat."""

    name = "cheated"
    kinds = ("cuda", "cpu")

    def workloads(self):
        return [Workload.of(n=256, dtype="float32")]

    def check_workload(self, workload):
        """Accept every config."""

    def make_inputs(self, workload, seed, device):
        n = workload.size("n")
        source = torch.Generator().manual_seed(seed)
        x, w = (torch.randn(n, n, generator=source) for _ in range(2))
        if workload.get("nan"):
            x[0, 0] = float("nan")
        return {"x": x.to(device), "w": (w / n**0.5).to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"), workload.size("n")), "float32")}

    def reference(self, workload, inputs):
        return {"y": inputs["x"].double() @ inputs["w"].double()}

    def tolerance(self, workload):
        return Tolerance(1e-5, 8e-5)

    def cost(self, workload):
        return Cost(2.0 * workload.size("n") ** 3, 12.0 * workload.size("n") ** 2)

    def space(self, workload):
        raise NotImplementedError

    def default_config(self, workload, device):
        return HONEST

    def launches(self, workload, config, tensors):
        play = Play(config["cheat"])
        return [Launch(play, (1,), (tensors["x"], tensors["w"], tensors["y"]))]

    def cpu_callable(self, workload, config):
        play = Play(config["cheat"])

        def run(tensors):
            y = torch.empty_like(tensors["x"])
            play(tensors["x"], tensors["w"], y)
            return {"y": y}

        return run

    def baselines(self, workload):
        return {"eager": lambda inputs: {"y": inputs["x"] @ inputs["w"]}}
