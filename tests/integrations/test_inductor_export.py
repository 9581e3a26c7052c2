"""`tuner export --format inductor`, read by the lookup of the installed torch."""

from __future__ import annotations

import json

import pytest
import torch
from torch._inductor.kernel.mm import aten_mm, mm_template
from torch._inductor.lookup_table import LookupTableChoices
from tuned_runs import H200, add_result

from search_spaces.errors import TunerError
from search_spaces.records import Workload
from tuner import tables

TILE = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_stages": 3}
DEEP = {**TILE, "BLOCK_K": 128}
WORKLOAD = Workload.of(M=512, N=256, K=192, dtype="bfloat16")


class Inputs:
    """What the lookup asks of the inputs of a product, as Inductor's own `KernelInputs` answers."""

    def __init__(self, a, b):
        self._tensors, self._scalars = (a, b), {}

    def device(self):
        return torch.device("cuda:0")

    def dtypes(self):
        return tuple(tensor.dtype for tensor in self._tensors)

    def shapes_hinted(self):
        return tuple(tuple(tensor.shape) for tensor in self._tensors)

    def strides_hinted(self):
        return tuple(tensor.stride() for tensor in self._tensors)


def looked_up(table, a, b, device="NVIDIA H200", template=mm_template):
    """The configs that Inductor tries of a template. The overridden methods ask for a card."""

    class Choices(LookupTableChoices):
        def _get_lookup_table(self):
            return table

        @staticmethod
        def _get_device_key(_):
            return device

    uid = template.uid
    hashes = {uid: getattr(template, "src_hash", None)}
    return Choices().lookup_template_configs(Inputs(a, b), "mm", [uid], hashes).get(uid)


def operands(m, n, k, dtype=torch.bfloat16):
    return (
        torch.empty(m, k, dtype=dtype, device="meta"),
        torch.empty(k, n, dtype=dtype, device="meta"),
    )


def test_inductor_finds_the_winner_of_a_product(store, tmp_path):
    add_result(store, 1, "matmul", WORKLOAD, [(TILE, 20.0), (DEEP, 10.0)])
    add_result(store, 1, "matmul", WORKLOAD.with_dims(K=256), [(TILE, 10.0), (DEEP, 20.0)])
    (path,) = tables.export(store, 1, tmp_path, "inductor")
    assert path.name == "inductor-NVIDIA_H200.json"
    table = json.loads(path.read_text())
    (found,) = looked_up(table, *operands(512, 256, 192))
    assert found == {**DEEP, "EVEN_K": False}
    (found,) = looked_up(table, *operands(512, 256, 256))
    assert found == {**TILE, "EVEN_K": True}
    a, b = operands(512, 256, 192)
    # The vendor's product stays among the choices.
    assert looked_up(table, a, b, template=aten_mm) == [{}]
    assert looked_up(table, a, b, device="NVIDIA B200") is None
    assert looked_up(table, a, b.T.contiguous().T) is None
    assert looked_up(table, *operands(512, 256, 200)) is None


def test_inductor_tries_the_ties_of_a_winner_too(store, tmp_path):
    workload = WORKLOAD.with_dims(dtype="float16")
    add_result(store, 1, "matmul", workload, [(TILE, 20.0), (DEEP, 10.0)], ties=(TILE,))
    (path,) = tables.export(store, 1, tmp_path, "inductor")
    found = looked_up(json.loads(path.read_text()), *operands(512, 256, 192, torch.float16))
    assert found == [{**DEEP, "EVEN_K": False}, {**TILE, "EVEN_K": True}]
    assert looked_up(json.loads(path.read_text()), *operands(512, 256, 192)) is None


def test_a_config_beyond_the_template_gives_way_to_the_fastest_that_it_has(store, tmp_path):
    split = {**DEEP, "SPLIT_K": 4}
    times = [(TILE, 20.0), (DEEP, 15.0), (split, 10.0)]
    add_result(store, 1, "matmul", WORKLOAD, times)
    (path,) = tables.export(store, 1, tmp_path, "inductor")
    (found,) = looked_up(json.loads(path.read_text()), *operands(512, 256, 192))
    assert found["BLOCK_K"] == 128


def test_a_run_without_such_a_product_is_refused_in_one_line(store, tmp_path):
    add_result(store, 1, "softmax", Workload.of(rows=8, cols=8), [(TILE, 2.0), (DEEP, 1.0)])
    with pytest.raises(TunerError, match="nothing for inductor: no matmul among softmax"):
        tables.export(store, 1, tmp_path, "inductor")
    single = WORKLOAD.with_dims(dtype="float32")
    add_result(store, 1, "matmul", single, [(TILE, 2.0), (DEEP, 1.0)], device=H200)
    with pytest.raises(TunerError, match="no config that Inductor's template can launch"):
        tables.export(store, 1, tmp_path, "inductor")
