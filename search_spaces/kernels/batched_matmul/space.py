"""The space of batched products: matmul's tiles, without splits of K. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import admitted_tiles
from search_spaces.kernels.matmul.space import matmul_space
from search_spaces.kernels.products import Product, narrowed, product_constraints, product_features
from search_spaces.params import Boolean, Choice, PowerOfTwo
from search_spaces.records import Config, Workload
from search_spaces.space import SearchSpace

#: Rows or columns up to which blocks of K are long, and up to which one warp has a whole product.
_SLENDER = 64
_DEEPEST, _DEEPEST_SLENDER, _MOST_STAGES = 128, 256, 5


def stored_shape(workload: Workload, name: str) -> tuple[int, int, int]:
    """The shape of `a` or `b` in memory: transposed or shared by all products where it is."""
    rows, cols = {"a": ("M", "K"), "b": ("K", "N")}[name]
    if workload[f"transpose_{name}"]:
        rows, cols = cols, rows
    count = 1 if workload["shared"] == name else workload.size("batch")
    return count, workload.size(rows), workload.size(cols)


def takes_descriptors(workload: Workload) -> bool:
    """Whether all rows are whole multiples of 16 bytes, as tensor descriptors need them."""
    element = ELEMENT_BYTES[workload.text("dtype")]
    lengths = (*(stored_shape(workload, name)[-1] for name in ("a", "b")), workload.size("N"))
    return all(length * element % 16 == 0 for length in lengths)


def product_of(config: Config, workload: Workload) -> Product:
    """The products of the launch."""
    return Product(
        rows=workload.size("M"),
        cols=workload.size("N"),
        depth=workload.size("K"),
        element_bytes=ELEMENT_BYTES[workload.text("dtype")],
        products=workload.size("batch"),
        staged=1 if config.get("persistent") else 0,
    )


def batched_space(workload: Workload) -> SearchSpace:
    """matmul's tiles, from one warp on where products are small."""
    sides = workload.size("M"), workload.size("N")
    deepest = _DEEPEST_SLENDER if min(sides) <= _SLENDER else _DEEPEST
    tiles = matmul_space(workload).parameters
    found = narrowed(tiles, depth=workload.size("K"), deepest=deepest, most_stages=_MOST_STAGES)
    for name in ("loads", "persistent", "SPLIT_K"):
        found.pop(name, None)
    if takes_descriptors(workload):
        found["loads"] = Choice("loads", ("pointer", "descriptor"))
        found["persistent"] = Boolean("persistent", when={"loads": ("descriptor",)})
    warps = found["num_warps"]
    if max(sides) <= _SLENDER and isinstance(warps, PowerOfTwo):
        found["num_warps"] = replace(warps, low=1)
    return SearchSpace(
        list(found.values()),
        CONSTRAINTS,
        kernel="batched_matmul",
        features=_FEATURES,
        admits=admitted_tiles(takes_descriptors(workload)),
    )


CONSTRAINTS = product_constraints(product_of)
_FEATURES = product_features(product_of)
