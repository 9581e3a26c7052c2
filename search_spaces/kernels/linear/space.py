"""The space of linear layers: matmul's tiles, and whether the epilogue is fused into the product.

Fused, a program applies bias and activation to its tile in registers. Otherwise a second launch
does, which also adds the parts of a split product. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import integer, nearest
from search_spaces.kernels.matmul.space import matmul_space
from search_spaces.kernels.products import (
    Product,
    narrowed,
    product_constraints,
    product_features,
    usual_point,
)
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import SearchSpace

#: Rows or columns up to which a problem waits for its other factor, in long blocks of K.
_SLENDER = 64
_DEEPEST, _DEEPEST_SLENDER, _MOST_STAGES = 128, 256, 5
#: Columns from which a usual tile wastes little.
_FEW_COLS = 128


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
    space = matmul_space(workload)
    found = narrowed(
        space.parameters, depth=workload.size("K"), deepest=deepest, most_stages=_MOST_STAGES
    )
    if "persistent" in found:
        found["subtiles"] = PowerOfTwo("subtiles", 1, 2, when={"persistent": (True,)})
    parts = found.get("SPLIT_K")
    if isinstance(parts, PowerOfTwo):
        found["SPLIT_K"] = replace(parts, when={"fused": (False,), **(parts.when or {})})
    parameters = [Choice("fused", (True, False)), *found.values()]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel="linear", features=_FEATURES, admits=space.admits
    )


def default_config(workload: Workload, device: Device) -> Config:
    """A usual config for the shape, with the epilogue fused; else matmul's usual tile."""
    bound = linear_space(workload).bind(workload, device)
    parameters = {item.name: item for item in bound.parameters}
    for usual in _usual(workload):
        config = bound.complete({"fused": True, "GROUP_M": 1, **_cut(usual, parameters)})
        if bound.feasible(config):
            return config
    return usual_point(bound)


def _cut(usual: Mapping[str, Value], parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    """The values of those parameters that the space has, numbers by the nearest."""
    return {
        name: nearest(parameters[name], value)
        if isinstance(value, int) and not isinstance(value, bool)
        else value
        for name, value in usual.items()
        if name in parameters
    }


def _usual(workload: Workload) -> list[dict[str, Value]]:
    """What is tried first.

    Few rows wait for weights: small tiles with long steps have more programs read them. float32 in
    three parts of TF32 is as precise as without tensor cores. Few columns get tiles that divide
    them, of small programs, since there is little to share. A large product walks over tiles, so
    that the next one's loads overlap with an epilogue; a gate's second sums leave no registers for
    that.
    """
    tile: dict[str, Value] = {
        "BLOCK_M": 128,
        "BLOCK_N": 256,
        "BLOCK_K": 64,
        "num_warps": 8,
        "num_stages": 3,
    }
    if workload["dtype"] == "float32":
        single = {**tile, "BLOCK_N": 64, "GROUP_M": 8, "precision": "tf32x3"}
        return [single, {**single, "GROUP_M": 1}]
    if workload.size("M") <= _SLENDER:
        return [{"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}]
    cols = workload.size("N")
    if cols < _FEW_COLS:
        part = next(size for size in (64, 32, 16) if cols % size == 0 or size == 16)
        narrow = {**tile, "BLOCK_M": 256, "BLOCK_N": max(32, part), "num_warps": 4}
        return [{**narrow, "num_stages": stages} for stages in (3, 2)]
    if is_gated(workload) or "persistent" not in _names(workload):
        return []
    return [{**tile, "loads": "descriptor", "persistent": True, "subtiles": 2}]


def _names(workload: Workload) -> set[str]:
    return {item.name for item in linear_space(workload).parameters}


def splits(config: Config) -> int:
    """Parts of K."""
    return integer(config, "SPLIT_K")


CONSTRAINTS = product_constraints(product_of)
_FEATURES = product_features(product_of)
