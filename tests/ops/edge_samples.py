"""Random calls of operators at the edges of dtypes and shapes, each beside torch's function.

`operator_cases` has the calls of each operator.

A sample holds the operator, torch's function of the same tensors, and the tensors. `difference`
runs both and says in which of error, shape, dtype, places of NaN and infinities, values and
gradients they differ. All follows from the state of one `random.Random`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from operator_calls import results_of

from search_spaces import registry
from search_spaces.errors import TunerError
from tuner.ops import operator
from tuner.ops.choosing import EAGER, TUNED, Choice
from workers.device import offline

#: Relative error of a result, and of the largest of its tensor.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-4, torch.float16: 6e-3, torch.bfloat16: 4e-2}
_ANY = ("plain", "equal", "zeros", "tiny", "inf", "-inf", "nan", "masked row")
#: Sums of products and squares overflow in another order than torch's.
EDGES, LARGE = _ANY, (*_ANY, "largest", "smallest")
_SIZES = (1, 2, 3, 5, 8, 17, 33)


@dataclass(frozen=True)
class Sample:
    """One call. Not all results have one right answer: the first `results` are compared."""

    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    tensors: Sequence[torch.Tensor]
    results: int | None = None
    gradients: bool = True


class Sampler:
    """Draws tensors. halves: whether kernels are interpreted, whose products of bfloat16 are
    wrong."""

    def __init__(self, seed: int, interpreted: bool = False) -> None:
        self.random, self.interpreted = random.Random(seed), interpreted
        self.source = torch.Generator().manual_seed(seed)

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def size(self) -> int:
        return int(self.pick(*_SIZES, *([0] if self.random.random() < 0.2 else [])))

    def dtype(self, product: bool = False) -> torch.dtype:
        halves = (
            [torch.float16] if product and self.interpreted else [torch.float16, torch.bfloat16]
        )
        return self.pick(torch.float32, torch.float32, torch.float64, *halves)  # type: ignore[no-any-return]

    def tensor(
        self, *shape: int, dtype: torch.dtype, edges: Sequence[str] = ("plain",)
    ) -> torch.Tensor:
        """Of normal numbers with an edge, and now and then strided or of another dtype."""
        x = torch.randn(shape, generator=self.source, dtype=torch.float64).to(dtype)
        self._spoil(x, self.pick(*edges))
        if x.ndim > 1 and self.random.random() < 0.15:
            x = x.mT.contiguous().mT
        if self.random.random() < 0.04:
            x = x.to(self.pick(torch.float32, torch.float16))
        return x

    def _spoil(self, x: torch.Tensor, edge: str) -> None:
        limits = torch.finfo(x.dtype)
        values = {
            "inf": float("inf"), "-inf": float("-inf"), "nan": float("nan"),
            "largest": limits.max, "smallest": limits.min, "tiny": limits.smallest_normal / 4,
        }  # fmt: skip
        if edge in ("equal", "zeros"):
            x.fill_(0.0 if edge == "zeros" else 1.5)
        elif edge == "masked row" and x.numel() and x.ndim > 1:
            x[self.random.randrange(x.shape[0])] = float("-inf")
        elif edge in values and x.numel():
            some = torch.rand(x.shape, generator=self.source) < self.pick(0.05, 0.5, 1.0)
            x.masked_fill_(some, values[edge])

    def ids(self, *shape: int, below: int) -> torch.Tensor:
        """Places 0 .. below - 1, now and then one out of range."""
        found = torch.randint(max(below, 1), shape, generator=self.source)
        if found.numel() and self.random.random() < 0.05:
            found.view(-1)[0] = below
        return found


# -- comparison ------------------------------------------------------------------------------------
def difference(sample: Sample) -> str:
    """Where the operator differs from torch's function; empty where they agree."""
    found, expected = (_run(each, sample) for each in (sample.ours, sample.torchs))
    bound = max(TOLERANCES.get(each.dtype, 0.0) for each in sample.tensors)
    if isinstance(found, Exception) or isinstance(expected, Exception):
        alike = type(found) is type(expected)
        return "" if alike else f"error {_say(found)} for {_say(expected)}"
    for kind, one, other in zip(("result", "gradient"), found, expected, strict=True):
        for ours, torchs in zip(one, other, strict=True):
            if why := _differ(ours, torchs, bound):
                return f"{kind}: {why}"
    return ""


def _say(found: Any) -> str:
    return f"{type(found).__name__}: {found}"[:90] if isinstance(found, Exception) else "a result"


def _run(function: Callable[..., Any], sample: Sample) -> Any:
    given = [
        each.detach().clone().requires_grad_(sample.gradients and each.is_floating_point())
        for each in sample.tensors
    ]
    try:
        with torch.no_grad():
            plain = results_of(function(*given))[: sample.results]
        if not sample.gradients:
            return plain, []
        out = [
            each for each in results_of(function(*given))[: sample.results] if each.requires_grad
        ]
        pulls = [torch.linspace(-1, 2, each.numel()).view(each.shape).to(each) for each in out]
        return plain, list(torch.autograd.grad(out, given, pulls, allow_unused=True))
    except Exception as error:
        return error


def _differ(ours: torch.Tensor | None, torchs: torch.Tensor | None, bound: float) -> str:
    if ours is None or torchs is None:
        return "" if ours is torchs else "one has no gradient"
    if ours.shape != torchs.shape or ours.dtype != torchs.dtype:
        return f"{tuple(ours.shape)} {ours.dtype} for {tuple(torchs.shape)} {torchs.dtype}"
    one, other = ours.double(), torchs.double()
    finite = other.isfinite()
    if not torch.equal(one.nan_to_num(7, 8, 9)[~finite], other.nan_to_num(7, 8, 9)[~finite]):
        return "NaN or infinities of torch elsewhere"
    if not bool(one[finite].isfinite().all()):
        return "NaN or infinities where torch has none"
    bound = max(bound, TOLERANCES.get(torchs.dtype, 0.0)) if torchs.is_floating_point() else 0.0
    largest = float(other[finite].abs().max()) if bool(finite.any()) else 0.0
    error = (one - other)[finite].abs() - bound * (other[finite].abs() + min(largest, 1e30) + 0.1)
    return "" if not bool((error > 0).any()) else f"values differ by {float(error.max()):.3g}"


def run_kernels() -> None:
    """Let every call that a kernel takes run it with its default config."""

    def choose(problem: Any, without: Any = ()) -> Choice:
        kernel = registry.load(problem.kernel)
        try:
            kernel.check_workload(problem.workload)
            config = kernel.default_config(problem.workload, offline("cuda:90"))
        except TunerError as error:
            return Choice(EAGER, error.message)
        return Choice(EAGER if without else TUNED, "default config", kernel, config)

    operator.choose = choose  # type: ignore[assignment]
