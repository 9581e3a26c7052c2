"""The tensors of a call, made again from its record.

Every buffer of a call is one tensor. Its arguments are views of it, with the strides, offsets and
alignment of the originals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.records import TensorSpec
from search_spaces.shape_tensor import torch_dtype
from tuner.capturing.arguments import decode
from tuner.capturing.call_records import Buffer, Call, View

if TYPE_CHECKING:
    import torch


def spec_of(call: Call, at: int) -> TensorSpec:
    """Shape and dtype of the tensor that holds a buffer.

    It has the shape of the argument where that fills the buffer, else it is flat: elements of the
    dtype that all its views have, or bytes.
    """
    buffer, views = call.buffers[at], views_of(call, at)
    whole = views[0]
    if len(views) == 1 and not buffer.misalignment and is_dense(whole):
        return TensorSpec(whole.shape, whole.dtype)
    dtypes = {view.dtype for view in views}
    width = torch_dtype(whole.dtype).itemsize
    padded = buffer.bytes + buffer.misalignment
    offsets = [view.offset + buffer.misalignment for view in views]
    if len(dtypes) == 1 and not any(offset % width for offset in (*offsets, padded)):
        return TensorSpec((padded // width,), whole.dtype)
    return TensorSpec((padded,), "uint8")


def views_of(call: Call, at: int) -> list[View]:
    """The tensor arguments in a buffer."""
    return [view for view in call.views if view.buffer == at]


def arguments_of(
    call: Call, tensors: Sequence[torch.Tensor], placed: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name. tensors: one per buffer, of its spec. placed: its
    functions and members of enumerations by place."""
    views = [_view(call, view, tensors[view.buffer]) for view in call.views]
    return {name: decode(encoded, views, placed) for name, encoded in call.arguments.items()}


def _view(call: Call, view: View, whole: torch.Tensor) -> torch.Tensor:
    own = f"{whole.dtype}", tuple(whole.shape), tuple(whole.stride())
    if own == (f"torch.{view.dtype}", view.shape, view.strides):
        return whole
    dtype = torch_dtype(view.dtype)
    offset = view.offset + call.buffers[view.buffer].misalignment
    flat = whole if whole.dtype == dtype else whole.view(dtype)
    start = flat.storage_offset() + offset // dtype.itemsize
    return flat.as_strided(view.shape, view.strides, start)


def make_tensor(
    call: Call, at: int, contents: Mapping[str, bytes], source: torch.Generator | None, device: str
) -> torch.Tensor:
    """The tensor of a buffer: its kept contents, or values drawn like those of the original."""
    import torch

    buffer, spec = call.buffers[at], spec_of(call, at)
    dtype = torch_dtype(spec.dtype)
    if device == "meta" or not math.prod(spec.shape):
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if buffer.contents and (kept := contents[buffer.contents]):
        kept = (kept * -(-buffer.bytes // len(kept)))[: buffer.bytes]  # those of another size
        data = bytearray(bytes(buffer.misalignment) + kept)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        return flat.view(dtype).reshape(spec.shape).to(device)
    return _draw_tensor(spec, buffer, source, device)


def _draw_tensor(
    spec: TensorSpec, buffer: Buffer, source: torch.Generator | None, device: str
) -> torch.Tensor:
    import torch

    dtype, values = torch_dtype(spec.dtype), buffer.values
    if not dtype.is_floating_point:
        low, high = (0, 127) if values is None else (int(values.low), int(values.high))
        if dtype == torch.bool:
            low, high = 0, 1
        end = min(high + 1, (1 << 63) - 1)
        found = torch.randint(low, end, spec.shape, generator=source, device=device)
        return found.to(dtype)
    if values is not None and values.low == values.high:
        return torch.full(spec.shape, values.low, dtype=dtype, device=device)
    found = torch.randn(spec.shape, generator=source, device=device, dtype=torch.float32)
    if values is not None:
        found = found.mul_(values.std).add_(values.mean).clamp_(values.low, values.high)
    return found.to(dtype)


def is_dense(view: View) -> bool:
    """Whether a view is contiguous, from its first element on."""
    steps = [math.prod(view.shape[at + 1 :]) for at in range(len(view.shape))]
    return all(
        size == 1 or stride == step
        for size, stride, step in zip(view.shape, view.strides, steps, strict=True)
    )
