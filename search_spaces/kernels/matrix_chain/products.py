"""Orders of association of a b c d, and the products of each. Imports no torch.

Each order is three products. Operands are the matrices and the results `first` and `second` of
earlier products; the last product gives `out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Value, Workload

#: Dims, so that matrix i is [dim i, dim i + 1].
DIMS = ("M", "K", "L", "P", "N")
MATRICES = ("a", "b", "c", "d")
ORDERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "((ab)c)d": (("a", "b"), ("first", "c"), ("second", "d")),
    "(a(bc))d": (("b", "c"), ("a", "first"), ("second", "d")),
    "(ab)(cd)": (("a", "b"), ("c", "d"), ("first", "second")),
    "a((bc)d)": (("b", "c"), ("first", "d"), ("a", "second")),
    "a(b(cd))": (("c", "d"), ("b", "first"), ("a", "second")),
}
RESULTS = ("first", "second", "out")
#: Tiles of a product beyond which its K is not split.
_ENOUGH_TILES = 512


@dataclass(frozen=True, slots=True)
class Product:
    """One product of an order."""

    left: str
    right: str
    result: str
    #: Its sizes and dtype, as the matmul family names them.
    workload: Workload

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.workload.size("M") * self.workload.size("N") * self.workload.size("K")


def shapes_of(workload: Workload) -> dict[str, tuple[int, int]]:
    """Rows and columns of the matrices."""
    sizes = [workload.size(dim) for dim in DIMS]
    return {name: (sizes[at], sizes[at + 1]) for at, name in enumerate(MATRICES)}


def products_of(workload: Workload, order: str) -> list[Product]:
    """The products of an order, as they are launched."""
    shapes, found = shapes_of(workload), []
    for result, (left, right) in zip(RESULTS, ORDERS[order], strict=True):
        (m, k), (_, n) = shapes[left], shapes[right]
        shapes[result] = (m, n)
        sizes = Workload.of(M=m, N=n, K=k, dtype=workload["dtype"])
        found.append(Product(left, right, result, sizes))
    return found


def flops_of(workload: Workload, order: str) -> float:
    """Operations of an order."""
    return sum(product.flops for product in products_of(workload, order))


def cheapest_order(workload: Workload) -> str:
    """The order of the fewest operations, the first of equal ones."""
    return min(ORDERS, key=lambda order: flops_of(workload, order))


def product_config(product: Workload, config: Config) -> Config:
    """The config of one product: tiles cut to its sizes, and K split only as far as it is long."""
    cut: dict[str, Value] = {name: value for name, value in config.items() if name != "order"}
    for dim in "MNK":
        held = max(16, next_power_of_two(product.size(dim)))
        cut[f"BLOCK_{dim}"] = min(integer(config, f"BLOCK_{dim}"), held)
    if "SPLIT_K" in cut:
        steps = ceil_div(product.size("K"), integer(cut, "BLOCK_K"))
        splits = min(integer(config, "SPLIT_K"), max(1, steps // 2))
        few = tiles_of(product, cut) * splits <= _ENOUGH_TILES
        cut["SPLIT_K"] = 1 << (splits.bit_length() - 1) if few else 1
    return cut


def tiles_of(product: Workload, config: Config) -> int:
    """Tiles of a product's result."""
    rows = ceil_div(product.size("M"), integer(config, "BLOCK_M"))
    return rows * ceil_div(product.size("N"), integer(config, "BLOCK_N"))
