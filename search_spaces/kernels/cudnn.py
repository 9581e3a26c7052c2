"""cuDNN's softmax and its backward pass as baselines, by ctypes in the library that torch ships.

Enumerators and signatures are those of `cudnn_ops.h` in cuDNN 9.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_NCHW = 0
_ACCURATE, _LOG = 1, 2
_OVER_INSTANCE = 0
_DATA_TYPES = {"torch.float32": 0, "torch.float16": 2, "torch.bfloat16": 9}


def softmax_forward(x: torch.Tensor) -> torch.Tensor:
    """`softmax(x, -1)` of a contiguous CUDA matrix by `cudnnSoftmaxForward`, on torch's stream.

    Raises `RuntimeError` where there is no CUDA tensor, no cuDNN, or cuDNN refuses.
    """
    import torch

    if x.device.type != "cuda":
        raise RuntimeError(f"cuDNN's softmax needs a CUDA tensor, got one on {x.device.type}")
    if x.dim() != 2 or not x.is_contiguous() or str(x.dtype) not in _DATA_TYPES:
        raise RuntimeError(
            f"cuDNN's softmax takes a contiguous matrix of {', '.join(_DATA_TYPES)}, "
            f"got {tuple(x.shape)} of {x.dtype}"
        )
    out = torch.empty_like(x)
    with torch.cuda.device(x.device):
        _run(x, out, x.device.index or 0, torch.cuda.current_stream().cuda_stream)
    return out


def _run(x: torch.Tensor, out: torch.Tensor, device: int, stream: int) -> None:
    library = _library()
    handle = _handle(device)
    descriptor = _descriptor(x.shape[0], x.shape[1], _DATA_TYPES[str(x.dtype)])
    _check(library.cudnnSetStream(handle, ctypes.c_void_p(stream)), "cudnnSetStream")
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    status = library.cudnnSoftmaxForward(
        handle,
        _ACCURATE,
        _OVER_INSTANCE,
        ctypes.byref(one),
        descriptor,
        ctypes.c_void_p(x.data_ptr()),
        ctypes.byref(zero),
        descriptor,
        ctypes.c_void_p(out.data_ptr()),
    )
    _check(status, "cudnnSoftmaxForward")


def log_softmax_forward(x: torch.Tensor) -> torch.Tensor:
    """`log_softmax(x, -1)` by cuDNN; needs and raises what `softmax_forward` does."""
    return _pointwise("cudnnSoftmaxForward", _LOG, x)


def softmax_backward(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The gradient of x from y = softmax(x, -1) and that of y, by `cudnnSoftmaxBackward`.

    Needs and raises what `softmax_forward` does.
    """
    return _pointwise("cudnnSoftmaxBackward", _ACCURATE, y, dy)


def log_softmax_backward(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The same of y = log_softmax(x, -1)."""
    return _pointwise("cudnnSoftmaxBackward", _LOG, y, dy)


def _pointwise(call: str, algorithm: int, *operands: torch.Tensor) -> torch.Tensor:
    """A function of cuDNN over the rows of matrices of one shape and dtype, on torch's stream."""
    import torch

    first = operands[0]
    if first.device.type != "cuda":
        raise RuntimeError(f"{call} needs a CUDA tensor, got one on {first.device.type}")
    known = first.dim() == 2 and str(first.dtype) in _DATA_TYPES
    if not known or not all(operand.is_contiguous() for operand in operands):
        raise RuntimeError(
            f"{call} takes contiguous matrices of {', '.join(_DATA_TYPES)}, "
            f"got {tuple(first.shape)} of {first.dtype}"
        )
    out = torch.empty_like(first)
    with torch.cuda.device(first.device):
        library, handle = _library(), _handle(first.device.index or 0)
        descriptor = _descriptor(first.shape[0], first.shape[1], _DATA_TYPES[str(first.dtype)])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(library.cudnnSetStream(handle, stream), "cudnnSetStream")
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        read = [each for t in operands for each in (descriptor, ctypes.c_void_p(t.data_ptr()))]
        written = (ctypes.byref(zero), descriptor, ctypes.c_void_p(out.data_ptr()))
        run = getattr(library, call)
        status = run(handle, algorithm, _OVER_INSTANCE, ctypes.byref(one), *read, *written)
        _check(status, call)
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    """libcudnn as torch ships it, else as the system finds it."""
    found = importlib.util.find_spec("nvidia.cudnn") if importlib.util.find_spec("nvidia") else None
    places = (found.submodule_search_locations or []) if found else []
    folders = [Path(place) / "lib" for place in places]
    shipped = [file for folder in folders for file in sorted(folder.glob("libcudnn.so.*"))]
    for candidate in [*map(str, shipped), "libcudnn.so.9", "libcudnn.so"]:
        try:
            library = ctypes.CDLL(candidate)
        except OSError:
            continue
        library.cudnnGetErrorString.restype = ctypes.c_char_p
        return library
    raise RuntimeError("no libcudnn: this torch ships none and the system has none")


@functools.cache
def _handle(device: int) -> ctypes.c_void_p:
    """One handle per device, kept for the life of the process; `device` is the current one."""
    handle = ctypes.c_void_p()
    _check(_library().cudnnCreate(ctypes.byref(handle)), "cudnnCreate")
    return handle


@functools.cache
def _descriptor(rows: int, cols: int, data_type: int) -> ctypes.c_void_p:
    library = _library()
    descriptor = ctypes.c_void_p()
    _check(library.cudnnCreateTensorDescriptor(ctypes.byref(descriptor)), "cudnnCreateTensor...")
    status = library.cudnnSetTensor4dDescriptor(descriptor, _NCHW, data_type, rows, cols, 1, 1)
    _check(status, "cudnnSetTensor4dDescriptor")
    return descriptor


def _check(status: int, call: str) -> None:
    if status != 0:
        text = _library().cudnnGetErrorString(status).decode()
        raise RuntimeError(f"{call} failed with {status}: {text}")
