# mypy: ignore-errors
"""Small kernels for the build tests: ones that builders must compile, and ones they must refuse."""

import torch
import triton
import triton.language as tl

from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.records import TensorSpec
from search_spaces.tensors import compiled, named


@triton.jit
def rows_softmax(X, Y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * n + cols, mask=cols < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + row * n + cols, (e / tl.sum(e, 0)).to(Y.dtype.element_ty), mask=cols < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def scale(X, Y, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(Y + at, tl.load(X + at) * factor)
    else:
        tl.store(Y + at, tl.load(X + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def dot(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = A + rm[:, None] * K + rk[None, :]
    b = B + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a), tl.load(b), acc)
        a += BK
        b += BK * N
    tl.store(C + rm[:, None] * N + rn[None, :], acc.to(C.dtype.element_ty))


@triton.jit
def broken(X, Y, n, BLOCK: tl.constexpr):
    tl.store(Y + tl.arange(0, BLOCK), undefined_name)  # noqa: F821


class _Base(Kernel):
    def workloads(self):
        return []

    def check_workload(self, workload):
        pass

    def reference(self, workload, inputs):
        raise NotImplementedError

    def tolerance(self, workload):
        return Tolerance(1e-5, 1e-5)

    def cost(self, workload):
        return Cost(1.0, 1.0)

    def space(self, workload):
        raise NotImplementedError

    def default_config(self, workload, device):
        return {}

    def baselines(self, workload):
        return {}


class TwoLaunches(_Base):
    """A scaled copy into scratch, under heuristics, then a row softmax; faults on demand."""

    name = "two_launches"

    def make_inputs(self, workload, seed, device):
        if device == "meta":
            return {"x": torch.empty(64, workload.size("n"), device=device)}
        drawn = torch.randn(64, workload.size("n"), generator=torch.Generator().manual_seed(seed))
        return {"x": drawn.to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((64, workload.size("n")), "float32")}

    def scratch(self, workload, config):
        return {"s": TensorSpec((64, workload.size("n")), "float32")}

    def launches(self, workload, config, tensors):
        if config.get("fault") == "raise":
            raise ValueError("no such <tile>")
        n, block = workload.size("n"), config["block"]
        first = broken if config.get("fault") == "source" else scale
        args = (tensors["x"], tensors["s"], n, *([] if first is broken else [config["factor"]]))
        options = {"num_warps": config["num_warps"]}
        if config.get("fault") == "ptxas":
            options["ptx_options"] = "--no-such-option"
        own = {**options, "num_warps": config.get("first_warps", config["num_warps"])}
        return [
            Launch(first, (64 * n // block,), args, {"BLOCK": block, **own}),
            Launch(rows_softmax, (64,), (tensors["s"], tensors["y"], n), {"BLOCK": n, **options}),
        ]


class _One:
    @triton.jit
    def add(X, Y, BLOCK: tl.constexpr, bias=1.0):
        at = tl.arange(0, BLOCK)
        tl.store(Y + at, tl.load(X + at) + bias)


class _Two:
    @triton.jit
    def add(X, Y, BLOCK: tl.constexpr, bias=2.0):
        at = tl.arange(0, BLOCK)
        tl.store(Y + at, tl.load(X + at) + bias)


class Parts(_Base):
    """The same machine code on another part of the input, or with another default."""

    name = "parts"

    def make_inputs(self, workload, seed, device):
        return {name: torch.empty(4, 64, device=device) for name in ("a", "b")}

    def outputs(self, workload):
        return {"y": TensorSpec((64,), "float32")}

    def launches(self, workload, config, tensors):
        fn = (_Two if config["two"] else _One).add
        part = tensors[config["of"]][config["row"]]
        return [Launch(fn, (1,), (part, tensors["y"]), {"BLOCK": 64, "num_warps": 1})]


@triton.heuristics({"shift": lambda args: 16 * args["steps"]})
@triton.jit
def shifted(x, y, shift, steps: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + shift)


class Shifted(_Base):
    """Two configs with one machine code, to which a heuristic passes different numbers."""

    name = "shifted"

    def make_inputs(self, workload, seed, device):
        return {"x": torch.empty(64, device=device)}

    def outputs(self, workload):
        return {"y": TensorSpec((64,), "float32")}

    def launches(self, workload, config, tensors):
        given = {"steps": config["steps"], "BLOCK": 64, "num_warps": 1}
        return [Launch(shifted, (1,), (tensors["x"], tensors["y"]), given)]


class Dot(_Base):
    name = "dot"

    def make_inputs(self, workload, seed, device):
        n = workload.size("n")
        return {k: torch.empty(n, n, dtype=torch.bfloat16, device=device) for k in "ab"}

    def outputs(self, workload):
        return {"c": TensorSpec((workload.size("n"),) * 2, "bfloat16")}

    def launches(self, workload, config, tensors):
        n, (bm, bn, bk) = workload.size("n"), (config[k] for k in ("bm", "bn", "bk"))
        options = {k: v for k, v in config.items() if k.startswith(("num_", "max"))}
        tiles = {"BM": bm, "BN": bn, "BK": bk, **options}
        args = (tensors["a"], tensors["b"], tensors["c"], n, n, n)
        return [Launch(dot, (n // bm, n // bn), args, tiles)]


class Pointwise(_Base):
    name = "pointwise"
    kinds = ("cpu",)

    def make_inputs(self, workload, seed, device):
        drawn = torch.randn(32, workload.size("n"), generator=torch.Generator().manual_seed(seed))
        return {"x": drawn.to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((32, workload.size("n")), "float32")}

    def cpu_threads(self, workload, config):
        return config.get("threads", 1)

    def cpu_callable(self, workload, config):
        def gelu_softmax(x):
            if config.get("fault"):
                raise ValueError("a fault in the traced function")
            return torch.softmax(torch.nn.functional.gelu(x), -1)

        run = named("y", compiled(gelu_softmax, {"cpp.simdlen": config["simdlen"]}), "x")
        if "copies" not in config:
            return run

        def copying(tensors):
            x = tensors["x"]
            for _ in range(config["copies"]):
                x = x.clone()
            return run({"x": x})

        return copying


two_launches, dot_kernel, pointwise = TwoLaunches(), Dot(), Pointwise()
