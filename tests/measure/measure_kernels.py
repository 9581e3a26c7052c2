# mypy: ignore-errors
"""Kernels for the measuring tests: correct, slow, and with a named fault."""

import torch
import triton
import triton.language as tl

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.records import TensorSpec, Workload
from search_spaces.tensors import compiled, named

_DTYPES = {"float32": Tolerance(1e-5, 1e-5), "bfloat16": Tolerance(1e-2, 2e-2)}


@triton.jit
def affine(X, Y, n, BLOCK: tl.constexpr, REPEAT: tl.constexpr, FAULT: tl.constexpr):
    """y = 2 x + 1, REPEAT times over the same elements, or with a planted fault."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    for _ in range(REPEAT):
        x = tl.load(X + at, mask=mask)
        y = x.to(tl.float32) * 2 + 1
        if FAULT == "constant":
            y = tl.full((BLOCK,), 1.0, tl.float32)
        if FAULT == "nan":
            y = tl.where(at == 3, float("nan"), y)
        if FAULT == "infinite":
            y = tl.where(at == 3, float("inf"), y)
        if FAULT == "one_element":
            y = tl.where(at == 3, y + 0.5, y)
        if FAULT == "precision":
            y = (x.to(tl.float16) * 2 + 1).to(tl.float32)
        if FAULT == "partial":
            mask = at < n - 5
        if FAULT == "after":
            mask = at < n + 4
        out = Y + at
        if FAULT == "before":
            out = Y + at - 4
        if FAULT == "illegal":
            out = Y + at + (1 << 40)
            mask = at < n + BLOCK
        tl.store(out, y.to(Y.dtype.element_ty), mask=mask)
        if FAULT == "mutate":
            tl.store(X + at, (x + 1).to(X.dtype.element_ty), mask=at == 0)


@triton.jit
def double(X, S, n, BLOCK: tl.constexpr, OVER: tl.constexpr):
    tl.static_assert(OVER < 100)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(S + at, tl.load(X + at, mask=at < n).to(tl.float32) * 2, mask=at < n + OVER)


@triton.jit
def increment(S, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(Y + at, (tl.load(S + at, mask=mask) + 1).to(Y.dtype.element_ty), mask=mask)


def make_noisy(y):
    """Other bits each time, within the tolerance."""
    return y * (1 + 1e-7 * torch.rand_like(y))


class _Affine(Kernel):
    def workloads(self):
        return [Workload.of(n=4096, dtype="float32")]

    def check_workload(self, workload):
        if workload.get("dtype") not in _DTYPES:
            raise WorkloadError("no such dtype")

    def make_inputs(self, workload, seed, device):
        shape, dtype = (workload.size("n"),), getattr(torch, workload.text("dtype"))
        if device == "meta":
            return {"x": torch.empty(shape, dtype=dtype, device=device)}
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return {"x": drawn.to(dtype).to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"),), workload.text("dtype"))}

    def reference(self, workload, inputs):
        if workload.get("broken_reference"):
            return {"z": inputs["x"]}
        return {"y": inputs["x"].double() * 2 + 1}

    def tolerance(self, workload):
        return _DTYPES[workload.text("dtype")]

    def cost(self, workload):
        return Cost(2.0 * workload.size("n"), float(workload.get("bytes", 0)))

    def space(self, workload):
        raise NotImplementedError

    def default_config(self, workload, device):
        return {"block": 256}

    def baselines(self, workload):
        def raises(inputs):
            raise RuntimeError("this library has no such kernel\nfor this shape")

        allowed = self.tolerance(workload).relative
        return {
            "eager": lambda inputs: {"y": inputs["x"] * 2 + 1},
            "wrong": lambda inputs: {"y": inputs["x"] * 2},
            "raises": raises,
            "missing": lambda inputs: {},
            "noisy": lambda inputs: {"y": make_noisy(inputs["x"] * 2 + 1)},
            "rounded": lambda inputs: {"y": (inputs["x"] * 2 + 1) * (1 + 3 * allowed)},
        }


class TritonAffine(_Affine):
    """Configs: block, and optionally repeat, fault, via ("scratch")."""

    name = "triton_affine"

    def small_workload(self, workload):
        return workload.with_dims(n=613)

    def scratch(self, workload, config):
        if config.get("via") != "scratch":
            return {}
        return {"s": TensorSpec((workload.size("n"),), "float32")}

    def launches(self, workload, config, tensors):
        n, block = workload.size("n"), config["block"]
        fault = config.get("fault", "")
        if fault == "raise":
            raise ValueError("no such tile <b>")
        # One program more than needed: what it may write is all outside.
        grid = (triton.cdiv(n, block) + 1,)
        if config.get("via") == "scratch":
            over = {"scratch": 4, "inside": 100}.get(fault, 0)
            return [
                Launch(
                    double, grid, (tensors["x"], tensors["s"], n), {"BLOCK": block, "OVER": over}
                ),
                Launch(increment, grid, (tensors["s"], tensors["y"], n), {"BLOCK": block}),
            ]
        constants = {"BLOCK": block, "REPEAT": config.get("repeat", 1), "FAULT": fault}
        return [
            Launch(affine, grid, (tensors["x"], tensors["y"], n), {**constants, "num_warps": 4})
        ]


class CpuAffine(_Affine):
    """Configs: work (repeats), threads, fault, after (calls until a late fault), compile.

    Not compiled unless `compile` is set.
    """

    name = "cpu_affine"
    kinds = ("cpu",)

    def cpu_threads(self, workload, config):
        return config.get("threads", 1)

    def cpu_callable(self, workload, config):
        fault, work = config.get("fault"), config.get("work", 1)

        def plain(x):
            y = x
            for _ in range(work):
                y = x * 2 + 1 + 1e-30 * y
            return y

        if config.get("compile"):
            built = torch.compile(plain, fullgraph=True, dynamic=False)
            return lambda tensors: {"y": built(tensors["x"])}
        # The first launch of a verified config is one call; the gate has eight, more if in doubt.
        calls, timed = 0, config.get("after", 0)

        def run(tensors):
            nonlocal calls
            calls += 1
            y = plain(tensors["x"])
            if fault == "raise" or (fault == "raise_later" and calls > timed):
                raise RuntimeError("boom")
            if fault == "mutate":
                tensors["x"].add_(1)
            if fault == "dtype":
                y = y.double()
            if fault == "late" and calls > timed:
                y = y + 1
            if fault == "noise":
                y = make_noisy(y)
            if fault == "threads":
                assert torch.get_num_threads() == config["threads"]
            return {} if fault == "missing" else {"y": y}

        return run


def baselines_that_compile():
    """Baselines that compile in different ways; `unlaunched` fails once `own` was launched."""
    launches = {}

    def counting(x, count):
        count.add_(1)
        return x * 2 + 1

    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    own, parts = torch.compile(counting), torch.compile(broken)

    def run_own(inputs):
        count = launches.setdefault("own", torch.zeros(1, device=inputs["x"].device))
        return {"y": own(inputs["x"], count)}

    def unlaunched(inputs):
        if "own" in launches and launches["own"].item():
            raise RuntimeError(f"launched {launches['own'].item()} times")
        return {"y": inputs["x"] * 2 + 1}

    return {
        "compile": named("y", compiled(lambda x: x * 2 + 1), "x"),
        "own": run_own,
        "parts": lambda inputs: {"y": parts(inputs["x"])},
        "unlaunched": unlaunched,
    }


class CpuCompiledBaselines(CpuAffine):
    """`CpuAffine` with baselines that compile."""

    name = "cpu_compiled_baselines"

    def baselines(self, workload):
        return {**baselines_that_compile(), **super().baselines(workload)}


class TritonCompiledBaselines(TritonAffine):
    """`TritonAffine` with baselines that compile."""

    name = "triton_compiled_baselines"

    def baselines(self, workload):
        return {**baselines_that_compile(), **super().baselines(workload)}
