"""The product of four matrices in any order of association, each product by a matmul in Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims, tolerance_of
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.limits import LARGEST_SIDE, integer
from search_spaces.kernels.matmul.kernel import Matmul
from search_spaces.kernels.matrix_chain.products import (
    DIMS,
    MATRICES,
    cheapest_order,
    flops_of,
    product_config,
    products_of,
    shapes_of,
)
from search_spaces.kernels.matrix_chain.space import chain_space, default_point, takes_descriptors
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

_MATMUL = Matmul()


class MatrixChain(Kernel):
    """a b c d of a[M, K], b[K, L], c[L, P] and d[P, N]; dims M, K, L, P, N, dtype and, optionally,
    tolerance (relative error).

    `order` is the order of association. Intermediate products have the same dtype and are in
    scratch memory. All products have the same tiles, which a smaller product cuts to its sizes.
    """

    name = "matrix_chain"
    edges = SPECIAL_EDGES
    dims = Dims(**dict.fromkeys("MKLPN", LARGEST_SIDE), dtype=DTYPES, tolerance=float)

    def workloads(self) -> Sequence[Workload]:
        workloads = self.dims.workloads(
            (4096, 64, 64, 4096, 64, "bfloat16"),  # Nystroemformer, 64 landmarks
            (4096, 7168, 1536, 128, 512, "bfloat16"),  # DeepSeek-V3: a head's latent query
            (8192, 4096, 16, 4096, 14336, "bfloat16"),  # Llama-3 8B with LoRA of rank 16
            (2048, 2048, 2048, 2048, 2048, "float16"),
            (999, 1003, 37, 1001, 501, "float32"),
            (10000, 100, 1000, 5, 333, "float32"),  # numpy.linalg.multi_dot's example
        )
        return [*workloads, workloads[-1].with_dims(tolerance=1e-3)]

    def small_workload(self, workload: Workload) -> Workload:
        # Descriptors need rows of whole 16 bytes, so where the workload has them, keep them.
        sizes = (37, 72, 24, 40, 16) if takes_descriptors(workload) else (37, 71, 23, 41, 19)
        return workload.with_dims(**dict(zip(DIMS, sizes, strict=True)))

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scaled so that all products are of the order of one, whatever the sizes.
        return {
            name: workload.spec(*shape, scale=1.0 if name == "a" else 1 / sqrt(shape[0]))
            for name, shape in shapes_of(workload).items()
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("M", "N")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        found = {}
        for product in products_of(workload, f"{config['order']}"):
            sizes = product.workload
            if product.result != "out":
                found[product.result] = workload.spec(sizes.size("M"), sizes.size("N"))
            own = _MATMUL.scratch(sizes, product_config(sizes, config))
            found |= {f"{product.result}_{name}": spec for name, spec in own.items()}
        return found

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        import torch

        return {"out": torch.linalg.multi_dot([inputs[name].double() for name in MATRICES])}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the rounding of each product, or of its sums in float32."""
        usual = ROUNDING[workload.text("dtype")]
        if workload["dtype"] == "float32":
            usual = max(1e-6 * sqrt(sum(workload.size(dim) for dim in DIMS[1:-1])), usual)
        relative = tolerance_of(workload, usual)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        return flops_of(workload, cheapest_order(workload))

    def space(self, workload: Workload) -> SearchSpace:
        return chain_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        launches = []
        for product in products_of(workload, f"{config['order']}"):
            own = product_config(product.workload, config)
            operands = {
                "a": tensors[product.left],
                "b": tensors[product.right],
                "out": tensors[product.result],
            }
            if integer(own, "SPLIT_K") > 1:
                operands["partial"] = tensors[f"{product.result}_partial"]
            launches += _MATMUL.launches(product.workload, own, operands)
        return launches

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(
            a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
        ) -> torch.Tensor:
            return a @ b @ c @ d

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        def multi_dot(*matrices: torch.Tensor) -> torch.Tensor:
            import torch

            product: torch.Tensor = torch.linalg.multi_dot(matrices)
            return product

        return {"multi_dot": multi_dot}
