"""Tensors without storage and without torch describe themselves as torch's meta tensors do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import shape_tensor
from search_spaces.shape_tensor import ShapeDtype, ShapeTensor, as_bytes, torch_dtype

DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "int8", "int64", "bool"]
SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


def described(tensor: object) -> list[object]:
    """What launches and Triton ask of a tensor."""
    one: torch.Tensor = tensor  # type: ignore[assignment]
    return [
        *(tuple(one.shape), one.stride(), one.stride(0), one.stride(-1), one.size(-1)),
        *(one.dim(), one.numel(), one.element_size(), one.data_ptr(), one.storage_offset()),
        *(str(one.dtype), one.dtype.itemsize, one.dtype.is_floating_point),
        *(one.device.type, one.is_contiguous(), one.is_cuda, one._base is None),
    ]


@given(SHAPES, st.sampled_from(DTYPES))
def test_a_shape_tensor_answers_as_a_meta_tensor(shape, dtype):
    ours = ShapeTensor(shape, ShapeDtype(dtype))
    theirs = torch.empty(shape, dtype=torch_dtype(dtype), device="meta")
    assert described(ours) == described(theirs)
    flat, of_torch = ours.view(-1), theirs.view(-1)
    assert described(flat) == described(of_torch)
    assert (flat._base is ours, of_torch._base is theirs) == (True, True)
    assert flat.view(-1)._base is ours


def test_every_dtype_that_triton_knows_by_name_has_torchs_size():
    for name in shape_tensor._BYTES:
        assert ShapeDtype(name).itemsize == torch_dtype(name).itemsize, name


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_elements_of_one_byte_can_be_read_as_bytes(dtype):
    ours = ShapeTensor((3, 5), ShapeDtype(dtype))
    theirs = torch.empty((3, 5), dtype=torch_dtype(dtype), device="meta")
    assert described(as_bytes(ours)) == described(as_bytes(theirs))


def test_a_view_needs_as_many_elements():
    with pytest.raises(RuntimeError, match="cannot have the shape"):
        ShapeTensor((2, 3), ShapeDtype("float32")).view(4, 2)
