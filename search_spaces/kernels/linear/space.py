"""The space of linear layers: matmul's tiles, and whether the epilogue is fused into the product.

Fused, a program applies bias and activation to its tile in registers. Otherwise a second launch
does, which also adds the parts of a split product. Imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.launch_limits import integer
from search_spaces.kernels.matmul.space import matmul_space
from search_spaces.kernels.products import (
    Product,
    narrowed,
    product_constraints,
    product_features,
    usual_point,
)
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Rows or columns up to which a problem waits for its other factor, in long blocks of K.
_SLENDER = 64
_DEEPEST, _DEEPEST_SLENDER, _MOST_STAGES = 128, 256, 5


def is_gated(workload: Workload) -> bool:
    """Whether the weights have a gate and a value for each output."""
    return workload.text("epilogue") == "swiglu"


def width(workload: Workload) -> int:
    """Rows of the weights."""
    return workload.size("N") * (2 if is_gated(workload) else 1)


def product_of(config: Config, workload: Workload) -> Product:
    """The product of the first launch; a fused gate is a second factor."""
    fused = bool(config["fused"])
    staged = 0.0
    if config.get("persistent"):
        tiles = 2 if fused and workload.text("epilogue") == "residual" else 1
        staged = tiles / integer(config, "subtiles")
    return Product(
        rows=workload.size("M"),
        cols=workload.size("N") if fused else width(workload),
        depth=workload.size("K"),
        element_bytes=ELEMENT_BYTES[workload.text("dtype")],
        factors=2 if fused and is_gated(workload) else 1,
        staged=staged,
    )


def linear_space(workload: Workload) -> SearchSpace:
    """matmul's tiles; K is split only where the epilogue is a launch of its own."""
    slender = min(workload.size("M"), workload.size("N")) <= _SLENDER
    deepest = _DEEPEST_SLENDER if slender else _DEEPEST
    tiles = matmul_space(workload).parameters
    found = narrowed(tiles, depth=workload.size("K"), deepest=deepest, most_stages=_MOST_STAGES)
    if "persistent" in found:
        found["subtiles"] = PowerOfTwo("subtiles", 1, 2, when={"persistent": (True,)})
    parts = found.get("SPLIT_K")
    if isinstance(parts, PowerOfTwo):
        found["SPLIT_K"] = replace(parts, when={"fused": (False,), **(parts.when or {})})
    parameters = [Choice("fused", (True, False)), *found.values()]
    return SearchSpace(parameters, CONSTRAINTS, kernel="linear", features=_FEATURES)


def default_config(workload: Workload, device: Device) -> Config:
    """matmul's usual tile, with the epilogue fused."""
    return usual_point(linear_space(workload).bind(workload, device))


def splits(config: Config) -> int:
    """Parts of K."""
    return integer(config, "SPLIT_K")


CONSTRAINTS = product_constraints(product_of)
_FEATURES = product_features(product_of)
