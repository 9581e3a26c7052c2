"""The product of four matrices on a CPU: the order of association, and how each product is made.

The order with the fewest operations need not be the fastest, because slender products run at a
fraction of a square one's rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.dims import Dims, tolerance_of
from search_spaces.kernel import Tolerance
from search_spaces.kernels.cpu_forms import ATEN, FLOATS, cores, form_space, rounding
from search_spaces.kernels.cpu_products import (
    DIVIDED,
    HAS_TEMPLATE,
    ONEDNN,
    TEMPLATE,
    WIDENED,
    CpuProduct,
    batched,
    blas,
    onednn,
    precisions,
    template_parameters,
    widened,
)
from search_spaces.params import Choice, Parameter
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

    Sizes: TypeAlias = tuple[int, ...]

_DIMS = ("d0", "d1", "d2", "d3", "d4")
#: Orders of association, each as three products of (left, right); results have the numbers 4 and 5.
_ORDERS = {
    "((ab)c)d": ((0, 1), (4, 2), (5, 3)),
    "(a(bc))d": ((1, 2), (0, 4), (5, 3)),
    "(ab)(cd)": ((0, 1), (2, 3), (4, 5)),
    "a((bc)d)": ((1, 2), (4, 3), (0, 5)),
    "a(b(cd))": ((2, 3), (1, 4), (0, 5)),
}


def left_to_right(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> torch.Tensor:
    """The product as Python evaluates it."""
    return a @ b @ c @ d


def multi_dot(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """torch's product in the order of the fewest operations."""
    import torch

    product: torch.Tensor = torch.linalg.multi_dot([a, b, c, d])
    return product


class CpuMatrixChain(CpuProduct):
    """a[d0, d1] @ b[d1, d2] @ c[d2, d3] @ d[d3, d4] on a CPU; dims d0 to d4 and dtype.

    Optionally tolerance (relative error); 4e-3 or more admits float32 products with operands
    rounded to bfloat16. `order` is the order of association. The form is `aten` (MKL for float32,
    oneDNN for bfloat16), `aten_onednn`, `aten_float32` (bfloat16 widened) or `template` (Inductor's
    C++ template), for all three products.
    """

    name = "cpu_matrix_chain"
    dims = Dims(d0=int, d1=int, d2=int, d3=int, d4=int, dtype=FLOATS, tolerance=float)
    small = {"d0": 33, "d1": 47, "d2": 21, "d3": 59, "d4": 35}
    arguments = ("a", "b", "c", "d")

    def workloads(self) -> Sequence[Workload]:
        shapes = [
            ((16, 7168, 1536, 128, 512), "bfloat16"),  # DeepSeek-V3: a head's absorbed query
            ((256, 1024, 16, 1024, 1024), "float32"),  # Qwen3 0.6B: LoRA of rank 16, then keys
            ((256, 1024, 16, 1024, 1024), "bfloat16"),
            ((512, 512, 512, 512, 512), "float32"),
            ((512, 512, 512, 512, 1), "float32"),
            ((30, 35, 15, 5, 10), "float32"),  # Cormen et al., Introduction to Algorithms
            ((333, 101, 257, 67, 129), "float32"),
        ]
        made = self.dims.workloads(*((*sizes, dtype) for sizes, dtype in shapes))
        return [*made, made[3].with_dims(tolerance=1e-2)]

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scaled so that the product is of the order of one.
        return {
            name: workload.spec(rows, cols, scale=1.0 if name == "a" else rows**-0.5)
            for name, (rows, cols) in zip("abcd", pairwise(workload.sizes(*_DIMS)), strict=True)
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("d0", "d4")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        a, b, c, d = (inputs[name].double() for name in self.arguments)
        return {"out": multi_dot(a, b, c, d)}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else three roundings of the results or of sums in float32."""
        usual = sqrt(3) * rounding(workload)
        if workload["dtype"] == "float32":
            usual = max(usual, 1e-6 * sqrt(3 * max(workload.sizes(*_DIMS))))
        relative = tolerance_of(workload, usual)
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        sizes = workload.sizes(*_DIMS)
        return operations(sizes, _best_order(sizes))

    def space(self, workload: Workload) -> SearchSpace:
        single = workload["dtype"] == "float32"
        forms = (ATEN, ONEDNN if single else WIDENED, TEMPLATE)
        order = Choice("order", tuple(_ORDERS))
        largest = max(workload.sizes(*_DIMS))
        blocks = template_parameters(largest, largest, packed=False)
        parameters: list[Parameter] = [order, *blocks]
        if single:
            parameters += precisions(self.tolerance(workload))
        return form_space(self.name, forms, parameters, [HAS_TEMPLATE, DIVIDED])

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The order of the fewest operations, as `torch.linalg.multi_dot` chooses it."""
        bound = self.space(workload).bind(workload, device)
        order = _best_order(workload.sizes(*_DIMS))
        return bound.complete({"threads": cores(device), "order": order})

    def eager(self, workload: Workload) -> Form:
        return left_to_right

    def form(self, workload: Workload, config: Config) -> Form:
        products: Mapping[str, Form] = {
            ATEN: blas,
            ONEDNN: onednn,
            WIDENED: widened,
            TEMPLATE: batched,
        }
        return _in_order(str(config["order"]), products[str(config["form"])])

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        return {"multi_dot": multi_dot}


def _in_order(order: str, product: Form) -> Form:
    def chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        made = [a, b, c, d]
        for left, right in _ORDERS[order]:
            made.append(product(made[left], made[right]))
        return made[-1]

    return chain


def operations(sizes: Sizes, order: str) -> float:
    """Operations of a product of matrices of these sizes, in an order of association."""
    shapes = list(pairwise(sizes))
    total = 0.0
    for left, right in _ORDERS[order]:
        rows, inner, cols = *shapes[left], shapes[right][1]
        total += 2.0 * rows * inner * cols
        shapes.append((rows, cols))
    return total


def _best_order(sizes: Sizes) -> str:
    return min(_ORDERS, key=lambda order: operations(sizes, order))
